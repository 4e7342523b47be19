"""How a plan fares: latency, requests a second, memory of each device. Pure.

The stages of one request run one after the other, so its latency is the sum of what is computed and
sent. Requests follow each other as fast as the busiest stage or link takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from shards.auto.problem import Codec, Device, DeviceLink, PlanningProblem
from shards.errors import PlanError


@dataclass(frozen=True, slots=True)
class Range:
    """Segments [start, end) on devices: the first one, and its replicas."""

    start: int
    end: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredictedMessage:
    """A message between two ranges, or from or to the source. ms: of it all. codec: its name."""

    sender: str
    receiver: str
    bytes: int
    ms: float
    fills_ms: float
    codec: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """latency_ms: of a request that waits for no other, by the slowest replicas. period_ms: from
    one request to the next at the busiest stage or link. compute_ms: of each range, with what its
    device does for messages. memory: bytes by device. lacks: why the plan cannot run, "" where it
    can."""

    latency_ms: float
    period_ms: float
    compute_ms: tuple[float, ...]
    crossings: tuple[PredictedMessage, ...]
    memory: Mapping[str, int]
    lacks: str = ""

    @property
    def rate(self) -> float:
        """Requests a second."""
        return 1e3 / self.period_ms if self.period_ms else inf


def memory_of(problem: PlanningProblem, device: Device, start: int, end: int) -> int:
    """Bytes of a loaded range."""
    part = problem.segments[start:end]
    activations = max((segment.activations for segment in part), default=0)
    return device.session + sum(segment.weights for segment in part) + activations


def computed_ms(problem: PlanningProblem, device: Device, start: int, end: int) -> float:
    """Of a device's processor for a request: the segments [start, end), and their messages."""
    segments = sum(problem.ms(device, at) for at in range(start, end))
    return problem.arrival_ms(device, start) + segments + problem.departure_ms(device, end)


def predict(problem: PlanningProblem, ranges: Sequence[Range]) -> Prediction:
    """Raises PlanError for ranges that do not cover the model once, in order, each device in one
    range."""
    by_name = {device.name: device for device in problem.devices}
    _check(problem, ranges, by_name)
    ways = _Ways(problem, by_name)
    compute, crossings, memory, periods = [], [], {}, []
    lacks = ""
    for number, each in enumerate(ranges):
        devices = [by_name[name] for name in each.devices]
        times = [computed_ms(problem, d, each.start, each.end) for d in devices]
        placed = list(zip(devices, times, strict=True))
        compute.append(max(device.lone_ms(time) for device, time in placed))
        rate = sum(device.share / time if time else inf for device, time in placed)
        periods.append(1 / rate)
        for device in devices:
            memory[device.name] = memory_of(problem, device, each.start, each.end)
            if memory[device.name] > device.memory:
                lacks = lacks or _no_room(device, memory[device.name])
        if number:
            before = ranges[number - 1]
            size = problem.segments[each.start - 1].out
            crossings.append(ways.between(before.devices, each.devices, size))
    first, last = ranges[0].devices, ranges[-1].devices
    if problem.source:
        source = (problem.source,)
        if problem.stays and first != source:
            lacks = lacks or f"its input would leave {problem.source}"
        if first != source:
            crossings.insert(0, ways.of_input(first))
        if last != source:
            crossings.append(ways.of_result(last))
    latency = sum(compute) + sum(each.ms for each in crossings)
    period = max([*periods, *(each.fills_ms for each in crossings)])
    return Prediction(latency, period, tuple(compute), tuple(crossings), memory, lacks)


def _check(
    problem: PlanningProblem, ranges: Sequence[Range], by_name: Mapping[str, Device]
) -> None:
    at, used = 0, list[str]()
    for each in ranges:
        if each.start != at or each.end <= each.start or not each.devices:
            raise PlanError(f"the range {each.start}..{each.end} does not go on at segment {at}")
        at = each.end
        used += each.devices
    if at != len(problem.segments):
        raise PlanError(f"the ranges end at segment {at} of {len(problem.segments)}")
    if strange := [name for name in used if name not in by_name]:
        raise PlanError(f"no device is named {strange[0]!r}")
    if len(set(used)) < len(used):
        raise PlanError("a device has two ranges")


class _Ways:
    """The messages of a problem's plans."""

    def __init__(self, problem: PlanningProblem, by_name: Mapping[str, Device]) -> None:
        self._problem = problem
        self._by_name = by_name

    def between(
        self, senders: Sequence[str], receivers: Sequence[str], size: int
    ) -> PredictedMessage:
        """The slowest of the messages that these devices may send to those."""
        return self._slowest(senders, receivers, size, lambda link: self._problem.way(size, link))

    def of_input(self, receivers: Sequence[str]) -> PredictedMessage:
        """From the source: with what it does for it, for it has no range that counts it."""
        problem = self._problem
        way = self._slowest((problem.source,), receivers, problem.sent_bytes, problem.entrance)
        return replace(way, ms=way.ms + problem.entering_ms(self._by_name[problem.source]))

    def of_result(self, senders: Sequence[str]) -> PredictedMessage:
        """To the source: as `of_input`."""
        problem, size = self._problem, self._problem.segments[-1].out
        way = self.between(senders, (problem.source,), size)
        handling = problem.handling_ms(self._by_name[problem.source], size)
        return replace(way, ms=way.ms + handling)

    def _slowest(
        self,
        senders: Sequence[str],
        receivers: Sequence[str],
        size: int,
        way: Callable[[DeviceLink], tuple[float, float, Codec]],
    ) -> PredictedMessage:
        found = []
        for sender in senders:
            for receiver in receivers:
                sites = self._by_name[sender].site, self._by_name[receiver].site
                ms, fills, codec = way(self._problem.link_of(*sites))
                found.append(PredictedMessage(sender, receiver, size, ms, fills, codec.name))
        return max(found, key=lambda each: each.ms)


def _no_room(device: Device, need: int) -> str:
    return f"{device.name} has {device.memory / 1e6:.0f} MB, of {need / 1e6:.0f} MB needed"
