"""The plan of a problem, and why the others are not it. Pure.

plan = make_plan(problem)      # plan.ranges, plan.prediction, plan.gap, plan.others
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from shards.auto.predict import Prediction, Range, memory_of, predict
from shards.auto.problem import Device, JpegCost, PlanningProblem, PlanObjective
from shards.auto.search import (
    CLOSE,
    FoundRanges,
    Tables,
    is_disproved,
    least_period,
    periods,
    shortest,
    some,
    tables_of,
)
from shards.errors import PlanError

MOST_KINDS = 24  # of unlike devices that a search for the highest rate looks at
MOST_TO_PROVE = 200  # states that are looked at to prove that a period cannot be had


@dataclass(frozen=True, slots=True)
class Other:
    """A plan that is not chosen. prediction: None where there is none. why: in one line."""

    name: str
    ranges: tuple[Range, ...]
    prediction: Prediction | None
    why: str


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """gap: by which share the objective could be better at the most: 0.0 where the search was
    exact."""

    ranges: tuple[Range, ...]
    prediction: Prediction
    gap: float
    others: tuple[Other, ...]


def make_plan(problem: PlanningProblem) -> FleetPlan:
    """Raises PlanError where no plan can run within the bounds; its message says which one."""
    tables = tables_of(problem)
    ranges, gap = _best(problem, tables)
    prediction = predict(problem, ranges)
    others = tuple(_others(problem, tables, ranges, prediction))
    return FleetPlan(ranges, prediction, gap, others)


def make_plan_with(problem: PlanningProblem, picture: JpegCost) -> FleetPlan:
    """The better one of two plans: the input leaves its source as it is, or as a picture. The other
    one, and what it was preferred to, stand in `others`, where they are not the same. Raises as
    `make_plan`, where neither can run."""
    found = list[tuple[str, FleetPlan]]()
    refused: PlanError | None = None
    for name, way in (("as pixels", None), ("as jpeg", picture)):
        try:
            found.append((name, make_plan(replace(problem, picture=way))))
        except PlanError as error:
            refused = error
    if not found:
        assert refused is not None  # by both
        raise refused
    found.sort(key=lambda each: _rank(problem, each[1].prediction))
    best = found[0][1]
    known = [best.prediction, *(other.prediction for other in best.others)]
    more = []
    for name, plan in found[1:]:
        chosen = Other(name, plan.ranges, plan.prediction, "")
        for other in (chosen, *(replace(o, name=f"{o.name}, {name}") for o in plan.others)):
            if other.prediction is not None and other.prediction not in known:
                why = _why_not(problem, other.prediction, best.prediction)
                more.append(replace(other, why=why))
    return replace(best, others=(*more, *best.others))


def _rank(problem: PlanningProblem, found: Prediction) -> tuple[float, ...]:
    """Lower is better."""
    first = {
        PlanObjective.LATENCY: found.latency_ms,
        PlanObjective.THROUGHPUT: found.period_ms,
        PlanObjective.DEVICES: float(len(found.memory)),
    }
    return first[problem.objective], found.latency_ms


def _best(problem: PlanningProblem, tables: Tables) -> tuple[tuple[Range, ...], float]:
    needed = 1e3 / problem.rate if problem.rate else inf
    if problem.objective is PlanObjective.LATENCY:
        found = shortest(tables, needed, latency=problem.latency_ms)
        return _ways(problem, found), _gap(found.latency_ms, found.bound)
    if problem.objective is PlanObjective.DEVICES:
        least = 1
        for count in range(1, len(problem.devices) + 1):
            found = shortest(tables, needed, count, problem.latency_ms)
            if found.ranges is not None:
                return found.ranges, 1 - least / count
            if found.bound == inf and least == count:  # it is proven that so many do not do
                least = count + 1
        return _ways(problem, found), 0.0
    return _fastest(problem, tables, needed)


def _fastest(
    problem: PlanningProblem, tables: Tables, needed: float
) -> tuple[tuple[Range, ...], float]:
    """The way with the shortest period; of those that have it, the least latency."""
    found = shortest(tables, needed, latency=problem.latency_ms)
    best, best_period = _ways(problem, found), needed
    proven = least_period(tables)  # by all devices
    if len(tables.kinds) > MOST_KINDS:
        tables = tables_of(replace(problem, devices=_fast_ones(problem, tables)))
    steps = periods(tables)
    steps = steps[(steps >= proven * (1 - CLOSE)) & (steps <= needed)]
    if len(steps):
        proven = float(steps[0])
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        period = float(steps[middle])
        ranges = some(tables, period, problem.latency_ms)
        if ranges is None:
            found = shortest(tables, period, None, problem.latency_ms, MOST_TO_PROVE)
            ranges = found.ranges
        if ranges is not None:
            best, best_period, high = ranges, period, middle
            continue
        if found.bound == inf:  # it is proven that there is none
            proven = max(proven, float(steps[min(middle + 1, len(steps) - 1)]))
        low = middle + 1
    # Between the proven bound and the plan lie periods of which no search said anything. Short ones
    # are disproved soonest, so the bound is raised by a bisection of its own.
    low, high = (int(np.searchsorted(steps, each)) for each in (proven, best_period))
    while low < high:
        middle = (low + high) // 2
        if is_disproved(tables, float(steps[middle]), problem.latency_ms, MOST_TO_PROVE):
            low = middle + 1
            proven = float(steps[low]) if low < len(steps) else best_period
        else:
            high = middle
    short = shortest(tables, best_period, latency=problem.latency_ms)
    gap = 0.0 if best_period == inf else _gap(best_period, min(proven, best_period))
    return short.ranges or best, gap


def _fast_ones(problem: PlanningProblem, tables: Tables) -> tuple[Device, ...]:
    """The kinds that can do most, and the source."""
    worth = [speed * len(kind) for speed, kind in zip(tables.speed, tables.kinds, strict=True)]
    order = sorted(range(len(worth)), key=lambda kind: -worth[kind])[:MOST_KINDS]
    kept = {device.name for kind in order for device in tables.kinds[kind]} | {problem.source}
    return tuple(device for device in problem.devices if device.name in kept)


def _ways(problem: PlanningProblem, found: FoundRanges) -> tuple[Range, ...]:
    if found.ranges is not None:
        return found.ranges
    if found.bound < inf:
        raise PlanError("no plan was found, though there may be one: loosen a bound")
    raise PlanError(_why_none(problem))


def _why_none(problem: PlanningProblem) -> str:
    if shortest(tables_of(replace(problem, latency_ms=inf, rate=0.0))).ranges is not None:
        return (
            f"no plan answers within {problem.latency_ms:g} ms at {problem.rate:g} requests/s: "
            "loosen a bound, or add devices"
        )
    segments = range(len(problem.segments))
    largest = max(segments, key=lambda at: problem.segments[at].weights)
    need = memory_of(problem, problem.devices[0], 0, len(segments))
    return (
        f"the devices have no room for the model: it needs {need / 1e6:.0f} MB, and segment "
        f"{problem.segments[largest].name} alone "
        f"{problem.segments[largest].weights / 1e6:.0f} MB of weights"
    )


def _gap(value: float, bound: float) -> float:
    return max(0.0, 1 - bound / value) if value > 0 else 0.0


# --- those that are not chosen --------------------------------------------------------------


def _others(
    problem: PlanningProblem, tables: Tables, chosen: Sequence[Range], prediction: Prediction
) -> Iterator[Other]:
    for name, ranges in rivals(problem):
        if tuple(ranges) == tuple(chosen):
            continue
        other = predict(problem, ranges)
        yield Other(name, tuple(ranges), other, _why_not(problem, other, prediction))
    used = sum(len(each.devices) for each in chosen)
    if used > 1 and problem.objective is not PlanObjective.DEVICES:
        fewer = shortest(tables, most_devices=used - 1, latency=problem.latency_ms)
        if fewer.ranges is not None:
            other = predict(problem, fewer.ranges)
            why = _why_not(problem, other, prediction)
            yield Other("a device less", fewer.ranges, other, why)


def _why_not(problem: PlanningProblem, other: Prediction, chosen: Prediction) -> str:
    if other.lacks:
        return other.lacks
    if other.latency_ms > problem.latency_ms:
        return f"{other.latency_ms:.1f} ms, of {problem.latency_ms:g} ms allowed"
    if problem.rate and other.rate < problem.rate:
        return f"{other.rate:.1f} requests/s, of {problem.rate:g} wanted"
    if problem.objective is PlanObjective.DEVICES and len(other.memory) > len(chosen.memory):
        return f"{len(other.memory)} devices, where {len(chosen.memory)} do"
    if problem.objective is PlanObjective.THROUGHPUT:
        return f"{other.rate:.1f} requests/s, not {chosen.rate:.1f}"
    return f"{other.latency_ms:.1f} ms, not {chosen.latency_ms:.1f}"


def rivals(problem: PlanningProblem) -> Iterator[tuple[str, list[Range]]]:
    """The rules that people use instead, for devices in the order of the problem."""
    count, devices = len(problem.segments), _with_room(problem)
    fastest = min(devices, key=lambda d: sum(problem.ms(d, at) for at in range(count)))
    yield f"all on {fastest.name}", [Range(0, count, (fastest.name,))]
    if problem.source != fastest.name and problem.source in [device.name for device in devices]:
        yield f"all on {problem.source}", [Range(0, count, (problem.source,))]
    if len(devices) > 1:
        yield "equal cuts", equal_cuts(problem)
        yield "memory-weighted ring", memory_ring(problem)


def _with_room(problem: PlanningProblem) -> tuple[Device, ...]:
    """The devices that can hold something: a source may be one that only asks. All where none
    can."""
    least = min(segment.weights + segment.activations for segment in problem.segments)
    found = tuple(d for d in problem.devices if d.session + least <= d.memory)
    return found or problem.devices


def equal_cuts(problem: PlanningProblem) -> list[Range]:
    """As many segments for each device, as far as they go round."""
    count = len(problem.segments)
    devices = _with_room(problem)[:count]
    ends = [round(count * n / len(devices)) for n in range(len(devices) + 1)]
    return _between(ends, [device.name for device in devices])


def memory_ring(problem: PlanningProblem) -> list[Range]:
    """Segments in proportion to each device's memory, the largest first: exo's
    `RingMemoryWeightedPartitioningStrategy` (github.com/exo-explore/exo)."""
    able = _with_room(problem)
    finite = [d.memory for d in able if d.memory < inf] or [1.0]
    devices = sorted(able, key=lambda d: (-min(d.memory, 2 * max(finite)), d.name))
    memory = [min(device.memory, 2 * max(finite)) for device in devices]
    count, total, ends, taken = len(problem.segments), sum(memory), [0], 0.0
    for each in memory:
        taken += each
        ends.append(round(count * taken / total))
    return _between(ends, [device.name for device in devices])


def _between(ends: Sequence[int], names: Sequence[str]) -> list[Range]:
    pairs = zip(ends, ends[1:], names, strict=False)
    return [Range(start, end, (name,)) for start, end, name in pairs if end > start]
