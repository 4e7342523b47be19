"""The best ranges for a problem, by A*: exact where the search ends within its bound. Pure.

A state is a segment, the kind of device before it, and how many of each kind are used up: equal
devices of one site are a kind, and exact in their number. What remains is bounded from below by a
dynamic programme over segments and kinds in which a device may serve again (the recurrence of
PipeEdge, DSD 2022, and of EdgeShard, arXiv 2405.14371); so the first way that reaches the end is
the best one (Hart, Nilsson and Raphael, 1968). The rate is raised by bisection over the periods
that ranges can have, as Alpa's inter-operator pass does (arXiv 2201.12023).

Replicas of a range are of one kind.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import NamedTuple

import numpy as np

from shards.auto.predict import Range, memory_of
from shards.auto.problem import Device, PlanningProblem

MOST_EXPANDED = 1500  # states of one search
WIDE, TRIED = 120, 2  # states of each step of a quick look, and ends of each range
GREED = 4.0  # what remains counts so much in the greedy one
CLOSE = 1e-9  # of rounding
State = tuple[int, int, tuple[int, ...]]  # segments done, kind before, used of each kind


class FoundRanges(NamedTuple):
    """ranges: None where there is no way, or none was found. bound: no way is shorter, in
    milliseconds."""

    ranges: tuple[Range, ...] | None
    latency_ms: float
    bound: float


@dataclass(frozen=True)
class Tables:
    """A problem as arrays. kinds: the devices of each kind. times, busy: [kind, start, end]
    milliseconds of a request alone, and of requests that follow each other; infinite without room.
    sends, fills: [kind, kind, position] of the message before a segment;
    begins, ends: [kind] from and to the source. work: [position] on speed 1.0, of what remains."""

    kinds: tuple[tuple[Device, ...], ...]
    times: np.ndarray
    busy: np.ndarray
    sends: np.ndarray
    fills: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    edges_fill: np.ndarray
    may_begin: np.ndarray
    work: np.ndarray
    speed: np.ndarray

    @property
    def segments(self) -> int:
        return int(self.times.shape[1]) - 1


def tables_of(problem: PlanningProblem) -> Tables:
    groups: dict[object, list[Device]] = {}
    for device in problem.devices:
        is_source = device.name == problem.source
        key = (replace(device, name=""), is_source)
        groups.setdefault(key, []).append(device)
    kinds = tuple(tuple(each) for each in groups.values())
    count, segments = len(kinds), len(problem.segments)
    times = np.full((count, segments + 1, segments + 1), inf)
    busy = times.copy()
    for k, (device, *_) in enumerate(kinds):
        ms = np.array([problem.ms(device, at) for at in range(segments)])
        until = np.concatenate([[0.0], np.cumsum(ms)])
        arrival = np.array([problem.arrival_ms(device, at) for at in range(segments + 1)])
        departure = np.array([0.0, *(problem.departure_ms(device, n + 1) for n in range(segments))])
        whole = until[None, :] - until[:, None] + arrival[:, None] + departure[None, :]
        fits = np.array(
            [
                [end > at and memory_of(problem, device, at, end) <= device.memory for end in spots]
                for at, spots in ((at, range(segments + 1)) for at in range(segments + 1))
            ]
        )
        at_once = np.minimum(whole, device.at_once_ms)
        times[k] = np.where(fits, at_once + (whole - at_once) / device.share, inf)
        busy[k] = np.where(fits, whole / device.share, inf)
    sends = np.zeros((count, count, segments + 1))
    fills = np.zeros((count, count, segments + 1))
    begins, ends, edges_fill = np.zeros(count), np.zeros(count), np.zeros((2, count))
    for a, (one, *_) in enumerate(kinds):
        for b, (other, *_) in enumerate(kinds):
            link = problem.link_of(one.site, other.site)
            for at in range(1, segments):
                sends[a, b, at], fills[a, b, at], _ = problem.way(
                    problem.segments[at - 1].out, link
                )
    may_begin = np.ones(count, bool)
    if problem.source:
        source = next(device for device in problem.devices if device.name == problem.source)
        for k, (device, *_) in enumerate(kinds):
            if device.name == problem.source:
                continue
            may_begin[k] = not problem.stays
            link = problem.link_of(source.site, device.site)
            result = problem.segments[-1].out
            begins[k], edges_fill[0, k], _ = problem.entrance(link)
            ends[k], edges_fill[1, k], _ = problem.way(result, link)
            begins[k] += problem.entering_ms(source)
            ends[k] += problem.handling_ms(source, result)
    usual = np.array([segment.ms for segment in problem.segments])
    work = np.concatenate([np.cumsum(usual[::-1])[::-1], [0.0]])
    speed = np.array([_most_speed(problem, device, usual) for device, *_ in kinds])
    return Tables(
        kinds, times, busy, sends, fills, begins, ends, edges_fill, may_begin, work, speed
    )


def _most_speed(problem: PlanningProblem, device: Device, usual: np.ndarray) -> float:
    own = np.array([problem.ms(device, at) for at in range(len(usual))])
    counted = own > 0
    return float((usual[counted] / own[counted]).max()) * device.share if counted.any() else inf


def shortest(
    tables: Tables,
    period: float = inf,
    most_devices: int | None = None,
    latency: float = inf,
    most_expanded: int = MOST_EXPANDED,
) -> FoundRanges:
    """The way of the least latency whose stages and links take a request each `period`
    milliseconds, on so many devices at most. A way above `latency` counts as none. Where the exact
    search would take too long, a greedy one goes on."""
    found = _search(tables, period, most_devices, latency, 1.0, most_expanded)
    if found.ranges is None and found.bound < inf:  # it was not finished
        greedy = _search(tables, period, most_devices, latency, GREED, most_expanded)
        return greedy._replace(bound=found.bound)
    return found


def is_disproved(tables: Tables, period: float, latency: float, most_expanded: int) -> bool:
    """Whether so many states prove that no way has such a period within the latency."""
    found = _search(tables, period, None, latency, 1.0, most_expanded)
    return found.ranges is None and found.bound == inf


def some(tables: Tables, period: float, latency: float = inf) -> tuple[Range, ...] | None:
    """A way, where a quick look finds one: range by range as far as a device comes, and of what is
    reached so the ways that leave most to the devices that are not used."""
    counts = tuple(len(kind) for kind in tables.kinds)
    capacity = _Capacity(tables, counts, sum(counts))
    needed, last = _needed(tables, period), tables.segments
    passes = tables.fills <= period * (1 + CLOSE)
    onward: np.ndarray = np.asarray(
        passes.any(axis=1)
    )  # [kind, position]: a message may go on from there
    onward[:, last] = tables.edges_fill[1] <= period * (1 + CLOSE)
    starts = tables.may_begin & (tables.edges_fill[0] <= period * (1 + CLOSE))
    none_used = (0,) * len(counts)

    @cache
    def moves(kind: int, at: int) -> list[tuple[int, int]]:
        """Replicas, ascending, and an end that they come to; fewer would not come there."""
        found: dict[int, int] = {}
        for taken in range(1, counts[kind] + 1):
            for end in np.flatnonzero((needed[kind, at] <= taken) & onward[kind])[-TRIED:]:
                found.setdefault(int(end), taken)
        return sorted((taken, end) for end, taken in found.items())

    level: dict[State, float] = {(0, -1, none_used): 0.0}
    parents: dict[State, State | None] = {}
    while level:
        reached: dict[State, float] = {}
        for state, cost in level.items():
            at, before, used = state
            for kind, count in enumerate(counts):
                left = count - used[kind]
                if not left or not (starts[kind] if before < 0 else passes[before, kind, at]):
                    continue
                sent = tables.begins[kind] if before < 0 else tables.sends[before, kind, at]
                for taken, end in moves(kind, at):
                    if taken > left:
                        break
                    now = (*used[:kind], used[kind] + taken, *used[kind + 1 :])
                    whole = cost + float(sent) + float(tables.times[kind, at, end])
                    new: State = (end, kind, now)
                    if whole > latency or whole >= reached.get(new, inf):
                        continue
                    if end == last:
                        if whole + float(tables.ends[kind]) > latency:
                            continue
                        parents[new] = state if before >= 0 else None
                        return _ranges(tables, parents, new)
                    reached[new] = whole
                    parents[new] = state if before >= 0 else None
        slack = {s: period * capacity.left(s[2]) - float(tables.work[s[0]]) for s in reached}
        best = sorted((s for s in reached if slack[s] >= -CLOSE), key=lambda s: -slack[s])[:WIDE]
        level = {state: reached[state] for state in best}
    return None


def least_period(tables: Tables) -> float:
    """No way has a shorter period: all devices together could not do the work."""
    whole = sum(float(s) * len(k) for s, k in zip(tables.speed, tables.kinds, strict=True))
    return float(tables.work[0]) / whole if whole else inf


def _rest(tables: Tables, counts: Sequence[int], limits: np.ndarray, period: float) -> np.ndarray:
    """[position, kind before]: the least that remains, where a device may serve again. limits:
    times, infinite where a range takes too long even with all devices of its kind."""
    last, kinds = tables.segments, len(counts)
    sends = np.where(tables.fills <= period * (1 + CLOSE), tables.sends, inf)
    for kind, count in enumerate(counts):
        if count == 1:
            sends[kind, kind] = inf
    rest = np.full((last + 1, kinds), inf)
    rest[last] = np.where(tables.edges_fill[1] <= period * (1 + CLOSE), tables.ends, inf)
    for at in range(last - 1, -1, -1):
        onward = (limits[:, at, at + 1 :] + rest[at + 1 :].T).min(axis=1)  # by kind that goes on
        rest[at] = (sends[:, :, at] + onward[None, :]).min(axis=1)
    return rest


def _search(
    tables: Tables,
    period: float,
    most_devices: int | None,
    latency: float,
    greed: float,
    most_expanded: int,
) -> FoundRanges:
    counts = tuple(len(kind) for kind in tables.kinds)
    most = sum(counts) if most_devices is None else most_devices
    needed = _needed(tables, period)
    limits = np.where(needed <= np.array(counts)[:, None, None], tables.times, inf)
    rest = _rest(tables, counts, limits, period)
    last, longest = tables.segments, latency * (1 + CLOSE)
    heap: list[tuple[float, int, int, State]] = []
    numbers = itertools.count()
    parents: dict[State, State | None] = {}
    spent: dict[State, float] = {}
    capacity = _Capacity(tables, counts, most)

    numbers_of = np.array(counts)
    remains = rest.T  # [kind, position]

    def grow(
        at: int, ways: np.ndarray, used: tuple[int, ...], cost: float, before: State | None
    ) -> None:
        """ways: milliseconds to each kind; infinite where there is none."""
        left = np.minimum(numbers_of - np.array(used), most - sum(used))
        costs = (cost + ways)[:, None] + tables.times[:, at]
        least = costs + remains  # no way through these states is shorter
        good = (needed[:, at] <= left[:, None]) & (least <= longest) & (least < inf)
        for kind, end in np.argwhere(good).tolist():
            now = (*used[:kind], used[kind] + int(needed[kind, at, end]), *used[kind + 1 :])
            state = (end, kind, now)
            reached = float(costs[kind, end])
            if reached >= spent.get(state, inf) * (1 - CLOSE):
                continue
            if tables.work[end] > period * capacity.left(now) * (1 + 1e-6):
                continue
            spent[state], parents[state] = reached, before
            worth = reached + greed * float(rest[end, kind])
            heapq.heappush(heap, (worth, -end, next(numbers), state))

    begin = tables.may_begin & (tables.edges_fill[0] <= period * (1 + CLOSE))
    grow(0, np.where(begin, tables.begins, inf), (0,) * len(counts), 0.0, None)
    done: dict[State, float] = {}
    while heap:
        *_, state = heapq.heappop(heap)
        at, kind, used = state
        cost = spent[state]
        if done.get(state, inf) <= cost:
            continue  # it came here by a shorter way, and went on
        if at == last:
            whole = cost + float(tables.ends[kind])
            return FoundRanges(_ranges(tables, parents, state), whole, whole)
        done[state] = cost
        if len(done) > most_expanded:
            open_states = [s for *_, s in heap]
            bound = min((spent[s] + float(rest[s[0], s[1]]) for s in open_states), default=inf)
            return FoundRanges(None, inf, min(bound, cost + float(rest[at, kind])))
        passes = tables.fills[kind, :, at] <= period * (1 + CLOSE)
        grow(at, np.where(passes, tables.sends[kind, :, at], inf), used, cost, state)
    return FoundRanges(None, inf, inf)


def _needed(tables: Tables, period: float) -> np.ndarray:
    """[kind, start, end]: devices that take a request each period; infinite without room."""
    fits = np.isfinite(tables.busy)
    if period == inf:
        return np.where(fits, 1.0, inf)
    return np.where(fits, np.maximum(np.ceil(tables.busy / period - CLOSE), 1.0), inf)


class _Capacity:
    """How much work the devices that are left could do, if it could be shared at will."""

    def __init__(self, tables: Tables, counts: Sequence[int], most: int) -> None:
        self._order = np.argsort(-tables.speed, kind="stable")
        self._speed, self._counts, self._most = tables.speed, counts, most
        self._known: dict[tuple[int, ...], float] = {}

    def left(self, used: tuple[int, ...]) -> float:
        """Milliseconds on speed 1.0, a millisecond."""
        if used not in self._known:
            left, speed = self._most - sum(used), 0.0
            for kind in self._order:
                taken = min(self._counts[kind] - used[kind], left)
                if taken:
                    speed, left = speed + float(self._speed[kind]) * taken, left - taken
            self._known[used] = speed
        return self._known[used]


def _ranges(tables: Tables, parents: dict[State, State | None], end: State) -> tuple[Range, ...]:
    path: list[State] = [end]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    path.reverse()
    ranges, at = [], 0
    used = [0] * len(tables.kinds)
    for segment, kind, now in path:
        chosen = tables.kinds[kind][used[kind] : now[kind]]
        ranges.append(Range(at, segment, tuple(device.name for device in chosen)))
        used[kind], at = now[kind], segment
    return tuple(ranges)


def periods(tables: Tables) -> np.ndarray:
    """Each period that a way can have, ascending, milliseconds."""
    counts = [len(kind) for kind in tables.kinds]
    found = [tables.fills.ravel(), tables.edges_fill.ravel()]
    for kind, count in enumerate(counts):
        times = tables.busy[kind][np.isfinite(tables.busy[kind])]
        found.append((times[None, :] / np.arange(1, count + 1)[:, None]).ravel())
    return np.unique(np.concatenate(found))
