"""The pipelines of a fleet, put together from what its nodes say: pure.

A pipeline is a model version: its stages, which nodes serve each of them, and where time goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.watch.dashboard.facts import (
    FALLBACK,
    MOST_PARTS,
    PRIMARY,
    NodeFacts,
    Pair,
    PartFacts,
    PlanFacts,
    StageFacts,
)
from nodes.watch.dashboard.health import GONE, HealthLevel
from nodes.watch.dashboard.history import rounded
from swarm.fleet.coverage import Version

NO_VERSIONS: Mapping[Version, int] = {}
KINDS = ("primary", "standby", "fallback")
MOST_PIPELINES = 64  # that a page shows


@dataclass(frozen=True, slots=True)
class NodeNow:
    """A node as it is known now. rates: requests a second of each (version, stage)."""

    facts: NodeFacts
    health: HealthLevel
    rates: Mapping[tuple[str, int], float | None]

    def kind(self) -> str:
        return KINDS[min(self.facts.priority, FALLBACK)]


@dataclass(frozen=True, slots=True)
class _Seat:
    """A node at a stage."""

    node: NodeNow
    stage: StageFacts

    @property
    def rate(self) -> float:
        return self.node.rates.get((self.stage.version, self.stage.stage)) or 0.0

    @property
    def takes_work(self) -> bool:
        return self.node.health in (HealthLevel.WELL, HealthLevel.SUSPECT)


def pipelines_of(
    nodes: Iterable[NodeNow], serving: Mapping[Version, int] = NO_VERSIONS
) -> list[dict[str, Any]]:
    """A document for each model version that some node has stages of, or that has to serve, by
    name. serving: the number of stages of each of those. Latencies in ms, rates in requests a
    second."""
    nodes = list(nodes)
    seats: dict[Version, dict[int, list[_Seat]]] = {version: {} for version in serving}
    for node in nodes:
        for stage in node.facts.stages:
            if stage.model and stage.version:
                stages = seats.setdefault((stage.model, stage.version), {})
                stages.setdefault(stage.stage, []).append(_Seat(node, stage))
    # Those that have to serve are shown before any that a node may have made up.
    chosen = sorted(seats, key=lambda version: (version not in serving, version))[:MOST_PIPELINES]
    return [
        _pipeline(each, seats[each], serving.get(each, 1)) | {"parts": _parts(each, nodes)}
        for each in sorted(chosen)
    ]


def _parts(of: Version, nodes: Iterable[NodeNow]) -> list[dict[str, Any]]:
    """The parts of a composition, as the nodes that run it tell: the longest times, in ms, and
    counts since the nodes' starts."""
    told: dict[str, list[PartFacts]] = {}
    for node in nodes:
        for part in node.facts.parts if node.health not in GONE else ():
            if (part.model, part.version) == of:
                told.setdefault(part.part, []).append(part)
    return [
        {
            "part": name,
            "what": parts[0].what,
            "ms": [max((p.ms[place] or 0 for p in parts), default=0) or None for place in (0, 1)],
            "runs": sum(part.runs for part in parts),
            "left_out": sum(part.left_out for part in parts),
        }
        for name, parts in [*told.items()][:MOST_PARTS]
    ]


def _pipeline(of: Version, stages: dict[int, list[_Seat]], least: int) -> dict[str, Any]:
    model, version = of
    # A stage that nobody tells of, up to the last one that is known, has nobody.
    last = max([least, *stages])
    documents = [_stage(number, stages.get(number, [])) for number in range(1, last + 1)]
    rates = [stage["rate"] for stage in documents]
    return {
        "model": model,
        "version": version,
        "stages": documents,
        "rate": rounded(rates[-1]),
        "p50": _sum(stage[part][0] for stage in documents for part in ("queue", "compute")),
        "p99": _sum(stage[part][1] for stage in documents for part in ("queue", "compute")),
    }


def _stage(number: int, seats: list[_Seat]) -> dict[str, Any]:
    able = [seat for seat in seats if seat.takes_work]
    best = min((seat.node.facts.priority for seat in able), default=None)
    working = [seat for seat in able if seat.rate > 0] or able
    return {
        "stage": number,
        "cover": "none" if best is None else KINDS[min(best, FALLBACK)],
        "backed": sum(seat.node.facts.priority > 0 for seat in able),
        "rate": rounded(sum(seat.rate for seat in able)) or 0.0,
        "queue": _over(working, [seat.stage.queue for seat in working]),
        "compute": _over(working, [seat.stage.compute for seat in working]),
        "waiting": sum(seat.stage.waiting for seat in able),
        "in_hand": sum(seat.stage.in_hand for seat in able),
        "failed": sum(seat.stage.failed for seat in seats if seat.node.health not in GONE),
        "weights": sorted({seat.stage.weights for seat in able}),
        "seats": [
            {
                "node": seat.node.facts.node,
                "kind": seat.node.kind(),
                "health": seat.node.health,
                "rate": rounded(seat.rate),
                "serves": seat.takes_work and (seat.node.facts.priority == best or seat.rate > 0),
                "alone": seat.takes_work and seat.node.facts.priority == best != PRIMARY,
            }
            for seat in sorted(seats, key=lambda s: (s.node.facts.priority, s.node.facts.node))
        ],
    }


def _over(seats: Sequence[_Seat], pairs: Sequence[Pair]) -> list[float | None]:
    """The median of several nodes, weighted by their rates; of the p99 the worst."""
    known = [(p, seat.rate) for p, seat in zip(pairs, seats, strict=True) if p[0] is not None]
    if not known:
        return [None, None]
    weight = sum(rate for _, rate in known)
    if weight:
        middle = sum((pair[0] or 0.0) * rate for pair, rate in known) / weight
    else:
        middle = sum(pair[0] or 0.0 for pair, _ in known) / len(known)
    return [rounded(middle), rounded(max(pair[1] or 0.0 for pair, _ in known))]


def _sum(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return rounded(sum(known)) if known else None


# The plan in force of a pipeline, drawn as lanes: a row for each device, its slot in it. Pure.


MOST_LANES = 48  # that a page shows


def plan_of(nodes: Sequence[NodeNow], pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan of the pipeline's version that most living nodes tell of, the newest of several;
    None without one.

    Of each slot: its stages, the nodes that it shall have and has, and how long a request waits for
    it, ms of the median: the hop that leads there. A lane's ms is a request's time on that node.
    """
    of = pipeline["model"], pipeline["version"]
    told = [
        (now, plan)
        for now in nodes
        if now.health not in GONE
        for plan in now.facts.plans
        if (plan.model, plan.version) == of and plan.number
    ]
    if not told:
        return None
    tell = Counter((plan.number, plan.slots) for _, plan in told)
    most = max(tell, key=lambda each: (tell[each], each))
    plan = next(plan for _, plan in told if (plan.number, plan.slots) == most)
    lanes = sorted(
        (_lane(now, each, plan) for now, each in told),
        key=lambda lane: (lane["slot"] is None, lane["slot"], lane["node"]),
    )
    waits = {stage["stage"]: stage["queue"][0] for stage in pipeline["stages"]}
    return {
        "number": plan.number,
        "frozen": plan.frozen,
        "reason": plan.reason,
        "lacking": next((each.lacking for _, each in told if each.lacking), ""),
        "stages": max([last for _, last in plan.slots] + list(waits)),
        "slots": [
            {
                "first": first,
                "last": last,
                "replicas": plan.replicas[place] if place < len(plan.replicas) else 1,
                "nodes": sum(lane["slot"] == place for lane in lanes),
                "hop": waits.get(first),
            }
            for place, (first, last) in enumerate(plan.slots)
        ],
        "lanes": lanes[:MOST_LANES],
        "more": max(0, len(lanes) - MOST_LANES),
    }


def _lane(now: NodeNow, told: PlanFacts, plan: PlanFacts) -> dict[str, Any]:
    fills = told.number == plan.number and told.slot in plan.slots
    slot = plan.slots.index(told.slot) if fills and told.slot is not None else None
    first, last = plan.slots[slot] if slot is not None else (0, 0)
    pace = told.pace_us[first - 1 : last] if slot is not None else ()
    return {
        "node": now.facts.node,
        "health": now.health,
        "slot": slot,
        "ms": rounded(sum(pace) / 1e3) if len(pace) == last - first + 1 else None,
    }
