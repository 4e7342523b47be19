"""What live traffic and traced probes say about each stage, and what to do about it: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swarm.flow.latency import BUCKETS_S
from swarm.tracing.anatomy import KINDS, Kind, TimePart

OUTSIDE = 0  # the "stage" of what is before and behind all stages, of an edge too


@dataclass(frozen=True)
class Spread:
    """Milliseconds: median and 99th percentile."""

    p50: float
    p99: float


@dataclass(frozen=True)
class StageProfile:
    """One stage. nodes: that served requests, or could where there were none. rate: requests a
    second of all traffic. batch: requests in a run, in the mean. busy: share of the time that its
    nodes compute, 0 to 1. live_queue, live_compute: of all traffic, by the buckets of status
    documents. parts: of the probes."""

    stage: int
    nodes: int = 0
    rate: float = 0.0
    batch: float = 1.0
    busy: float = 0.0
    live_queue: Spread | None = None
    live_compute: Spread | None = None
    parts: Mapping[Kind, Spread] = field(default_factory=dict)

    @property
    def p50(self) -> float:
        """Milliseconds of a probe in this stage: the sum of its parts' medians."""
        return sum(spread.p50 for spread in self.parts.values())


@dataclass(frozen=True)
class Profile:
    """A model's stages over `seconds`. latency: of the probes, milliseconds. probes: answered."""

    model: str
    seconds: float
    probes: int
    latency: Spread | None
    stages: tuple[StageProfile, ...]

    @property
    def slowest(self) -> StageProfile | None:
        """The stage in which a probe spends most; by live traffic where there were no probes."""
        stages = [stage for stage in self.stages if stage.stage != OUTSIDE]
        return max(stages, key=lambda s: s.p50 or _live(s), default=None)


def _live(stage: StageProfile) -> float:
    return sum(s.p50 for s in (stage.live_queue, stage.live_compute) if s is not None)


def profile_of(
    model: str,
    seconds: float,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    probes: Sequence[tuple[float, Sequence[TimePart]]],
) -> Profile:
    """before, after: status documents by node, `seconds` apart. probes: latency in seconds, and the
    parts, of each answered probe."""
    live = _live_stages(model, before, after)
    parts = _probe_parts(probes)
    stages = []
    for number in sorted({*live, *parts}):
        found = live.get(number, _Live())
        runs = sum(found.runs)
        stages.append(
            StageProfile(
                number,
                found.nodes or found.standing,
                found.served / seconds,
                found.served / runs if runs else 1.0,
                min(1.0, found.computing / seconds / found.nodes) if found.nodes else 0.0,
                _spread_of(found.queue),
                _spread_of(found.compute),
                parts.get(number, {}),
            )
        )
    latencies = [latency * 1e3 for latency, _ in probes]
    return Profile(
        model, seconds, len(probes), _spread(latencies) if latencies else None, tuple(stages)
    )


@dataclass
class _Live:
    """Of one stage, all nodes together. standing: with those that served nothing."""

    standing: int = 0
    nodes: int = 0
    served: float = 0.0
    runs: list[float] = field(default_factory=list)
    computing: float = 0.0  # seconds
    queue: np.ndarray = field(default_factory=lambda: np.zeros(len(BUCKETS_S) + 1))
    compute: np.ndarray = field(default_factory=lambda: np.zeros(len(BUCKETS_S) + 1))


def _live_stages(
    model: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> dict[int, _Live]:
    found: dict[int, _Live] = defaultdict(_Live)
    name, _, version = model.partition("@")
    for node, document in after.items():
        if document.get("model") != name:
            continue
        old = {_key(entry): entry for entry in before.get(node, {}).get("stages", [])}
        for entry in document.get("stages", []):
            if (version and entry.get("version") != version) or "counters" not in entry:
                continue
            was = old.get(_key(entry), {})
            stage = found[int(entry["stage"])]
            served = _more(entry, was, "counters", "served")
            stage.standing += 1
            stage.nodes += served > 0
            stage.served += served
            stage.runs.append(_more(entry, was, "counters", "batches"))
            stage.queue += _counts(entry, was, "queue_s")
            stage.compute += _counts(entry, was, "compute_s")
            stage.computing += _more(entry, was, "compute_s", "sum")
    return found


def _key(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    return entry.get("version"), entry.get("stage")


def _more(new: Mapping[str, Any], old: Mapping[str, Any], part: str, name: str) -> float:
    """How much a counter grew; all of it where the node began anew."""
    now, then = float(new[part][name]), float(old.get(part, {}).get(name, 0))
    return now - then if now >= then else now


def _counts(new: Mapping[str, Any], old: Mapping[str, Any], part: str) -> np.ndarray:
    counts = np.zeros(len(BUCKETS_S) + 1)
    now = np.asarray(new.get(part, {}).get("counts", []), float)
    then = np.asarray(old.get(part, {}).get("counts", []), float)
    grown = now - then if then.shape == now.shape and (now >= then).all() else now
    counts[: len(grown)] = grown[: len(counts)]
    return counts


def _spread_of(counts: np.ndarray) -> Spread | None:
    """Percentiles of a histogram, milliseconds: straight lines inside its buckets."""
    total = counts.sum()
    if not total:
        return None
    upper = np.append(BUCKETS_S, BUCKETS_S[-1]) * 1e3
    lower = np.concatenate([[0.0], upper[:-1]])
    ends = np.cumsum(counts)

    def percentile(share: float) -> float:
        at = int(np.searchsorted(ends, share * total))
        inside = (share * total - (ends[at] - counts[at])) / counts[at]
        return float(lower[at] + inside * (upper[at] - lower[at]))

    return Spread(percentile(0.5), percentile(0.99))


def _probe_parts(
    probes: Sequence[tuple[float, Sequence[TimePart]]],
) -> dict[int, dict[Kind, Spread]]:
    lengths: dict[tuple[int, Kind], list[float]] = defaultdict(list)
    for _, parts in probes:
        sums: dict[tuple[int, Kind], float] = defaultdict(float)
        for part in parts:
            sums[part.stage, part.kind] += part.length / 1e3
        for key, value in sums.items():
            lengths[key].append(value)
    found: dict[int, dict[Kind, Spread]] = defaultdict(dict)
    for kind in KINDS:
        for (stage, of), values in lengths.items():
            if of == kind:
                # A part that a probe did not have took it no time.
                found[stage][kind] = _spread(values + [0.0] * (len(probes) - len(values)))
    return found


def _spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.percentile(values, 50)), float(np.percentile(values, 99)))


# What to do about the slowest stage: a decision of a profile alone.


BUSY = 0.7  # share of its time that a stage computes, from which on its queue is its load's
MUCH = 0.35  # share of a request's time from which on a part is worth a line
UNEVEN = 1.5  # times the mean that the slowest stage computes, from which on cuts are uneven


def advise(profile: Profile) -> list[str]:
    """Lines that say what to do next, the most worth it first; none where nothing stands out."""
    slowest = profile.slowest
    if slowest is None:
        return []
    lines: list[str] = []
    whole = sum(stage.p50 for stage in profile.stages) or slowest.p50 or 1.0
    compute = _median(slowest, "compute")
    waits = _median(slowest, "queue") + _median(slowest, "lane")
    computes = [_median(s, "compute") for s in profile.stages if s.stage != OUTSIDE]
    mean = sum(computes) / len(computes) if computes else 0.0
    if slowest.busy >= BUSY or (waits > compute and waits > MUCH * whole):
        lines.append(
            f"replicas: stage {slowest.stage} is busy {slowest.busy:.0%} of the time and requests "
            f"wait {waits:.2f} ms: start another node (`swarm-node --role shard-{slowest.stage}`)"
        )
    if len(computes) > 1 and mean and compute > UNEVEN * mean:
        lines.append(
            f"another cut: stage {slowest.stage} computes {compute:.2f} ms, the stages' mean is "
            f"{mean:.2f}: split anew on such a device (`swarm model split`)"
        )
    if compute > MUCH * whole:
        lines.append(
            f"quantize: computing in stage {slowest.stage} is {compute / whole:.0%} of a request: "
            "`swarm model quantize` tells whether INT8 pays here"
        )
    onward = sum(_median(s, "onward") for s in profile.stages)
    if onward > MUCH * whole:
        lines.append(
            f"a codec: features are on their way for {onward:.2f} ms, {onward / whole:.0%} of a "
            "request: allow one (`swarm model push --allow-codec i8`), or cut at smaller ones"
        )
    company = sum(_median(s, "batch wait") for s in profile.stages)
    if company > MUCH * whole:
        lines.append(f"batches: requests wait {company:.2f} ms for company: a lower `--max-wait`")
    return lines


def _median(stage: StageProfile, kind: str) -> float:
    for name, spread in stage.parts.items():
        if name == kind:
            return spread.p50
    if kind == "compute" and stage.live_compute is not None:
        return stage.live_compute.p50
    if kind == "queue" and stage.live_queue is not None:
        return stage.live_queue.p50
    return 0.0
