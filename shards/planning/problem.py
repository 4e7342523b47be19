"""What a plan is made from: segments of a model, devices, links, codecs. Pure.

A segment is the least that is placed: the layers between two cuts that may be chosen. A plan gives
consecutive ranges of segments to devices. Times are milliseconds, sizes bytes, rates bytes a
second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from shards.errors import PlanError

HOP_MS = 0.5  # of a message between two nodes, both sides together, beside the bytes on their way
SESSION_BYTES = 8 << 20  # of a loaded stage without weights, as `shards.runtimes.memory` has it


@dataclass(frozen=True, slots=True)
class Segment:
    """ms: on the machine that measured it (speed 1.0). weights, activations: bytes. out: bytes that
    cross behind it; behind the last one, of the result."""

    name: str
    ms: float
    weights: int = 0
    activations: int = 0
    out: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """speed: 2.0 takes half the time of the machine that measured the segments. times: its own
    measured milliseconds of each segment, which count instead. memory: bytes that may be taken.
    site: devices of one site have one link between them. session: bytes of a loaded stage."""

    name: str
    speed: float = 1.0
    memory: float = inf
    site: str = ""
    times: tuple[float, ...] = ()
    session: int = SESSION_BYTES


@dataclass(frozen=True, slots=True)
class Link:
    """rate: bytes a second, one way. rtt_ms: there and back."""

    rate: float = inf
    rtt_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Codec:
    """ratio: bytes on the way for a byte. ms_per_mb: of encoding and decoding, on speed 1.0. error:
    the largest measured change of the results."""

    name: str
    ratio: float = 1.0
    ms_per_mb: float = 0.0
    error: float = 0.0


NO_CODEC = Codec("none")


class Objective(StrEnum):
    """latency: of one request. throughput: requests a second, at a latency. devices: the fewest
    that reach a latency and a rate."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class Problem:
    """links: by pair of sites, in either order; a pair of one site twice is its own link; others
    are `link`. source: the device at which requests arise and results are wanted, "" for
    nowhere. stays: the input must not leave the source. latency_ms, rate: bounds, milliseconds and
    requests a second. most_error: of codecs. Raises `PlanError`."""

    segments: tuple[Segment, ...]
    devices: tuple[Device, ...]
    objective: Objective = Objective.LATENCY
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    link: Link = Link()
    codecs: tuple[Codec, ...] = (NO_CODEC,)
    most_error: float = 0.0
    source: str = ""
    stays: bool = False
    input_bytes: int = 0
    latency_ms: float = inf
    rate: float = 0.0
    hop_ms: float = HOP_MS

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not self.segments or not self.devices:
            raise PlanError("a plan needs a segment and a device at least")
        if len(set(names)) < len(names):
            raise PlanError(f"two devices have one name: {', '.join(sorted(names))}")
        if self.source and self.source not in names:
            raise PlanError(f"no device is named {self.source!r}, where requests arise")
        if self.stays and not self.source:
            raise PlanError("an input that stays on its device needs a source")
        for device in self.devices:
            if device.speed <= 0 or device.memory <= 0:
                raise PlanError(f"{device.name}: speed and memory are above 0")
            if device.times and len(device.times) != len(self.segments):
                count = len(self.segments)
                raise PlanError(f"{device.name}: {len(device.times)} times, of {count} segments")
        if not any(codec.error <= self.most_error for codec in self.codecs):
            raise PlanError(f"each codec changes results by more than {self.most_error:g}")

    def ms(self, device: Device, at: int) -> float:
        """Of a segment on a device."""
        return device.times[at] if device.times else self.segments[at].ms / device.speed

    def link_of(self, one: str, other: str) -> Link:
        """Between devices of two sites."""
        found = self.links.get((one, other)) or self.links.get((other, one))
        return found or self.link

    def way(self, size: int, link: Link) -> tuple[float, float, Codec]:
        """Milliseconds of a message of so many bytes, milliseconds for which it fills the link, and
        the codec that makes it the shortest."""
        best: tuple[float, float, Codec] | None = None
        for codec in self.codecs:
            if codec.error > self.most_error:
                continue
            fills = size * codec.ratio / link.rate * 1e3
            whole = self.hop_ms + link.rtt_ms / 2 + fills + size / 1e6 * codec.ms_per_mb
            if best is None or whole < best[0]:
                best = whole, fills, codec
        assert best is not None  # the problem has checked it
        return best
