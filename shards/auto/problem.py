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

# A message costs its sender and its receiver time of a processor, and waits for the server beside.
# Measured through a nats-server on the same host, features of 4 KB to 1 MB, with nothing idle.
HANDLE_MS, HANDLE_MS_PER_MB = 0.065, 0.7  # at each end, on speed 1.0 …
# … and so much more where the model's own work has pushed the code of messages out of the caches.
COLD_MS, COLD_FROM_MS = 0.135, 1.0  # from so many milliseconds of computing a request on
HOP_MS, HOP_MS_PER_MB = 0.5, 0.3  # on its way, beside the link's own
QUOTA_PERIOD_MS = 100.0  # as Docker and Kubernetes have it
# What Linux leaves on each core of a quota's group (`min_cfs_rq_runtime`), for two cores.
QUOTA_LEFT_MS = 2.0
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
    site: devices of one site have one link between them. session: bytes of a loaded stage. share,
    period_ms: a quota, as of a container: of a core, in each period."""

    name: str
    speed: float = 1.0
    memory: float = inf
    site: str = ""
    times: tuple[float, ...] = ()
    session: int = SESSION_BYTES
    share: float = 1.0
    period_ms: float = QUOTA_PERIOD_MS

    @property
    def at_once_ms(self) -> float:
        """Of computing, when it has been idle."""
        return inf if self.share == 1 else self.share * self.period_ms + QUOTA_LEFT_MS

    def lone_ms(self, computed: float) -> float:
        """Until a request alone has computed so many milliseconds: a quota that nobody has used
        lets it run at full speed first, and what is beyond it waits."""
        at_once = min(computed, self.at_once_ms)
        return at_once + (computed - at_once) / self.share


@dataclass(frozen=True, slots=True)
class DeviceLink:
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


NO_CODEC, JPEG = Codec("none"), Codec("jpeg")


@dataclass(frozen=True, slots=True)
class JpegCost:
    """An input as a JPEG: bytes, and milliseconds of its two ends on speed 1.0."""

    bytes: int
    encode_ms: float = 0.0
    decode_ms: float = 0.0


class PlanObjective(StrEnum):
    """latency: of one request. throughput: requests a second, at a latency. devices: the fewest
    that reach a latency and a rate."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """links: by pair of sites, in either order; a pair of one site twice is its own link; others
    are `link`. source: the device at which requests arise and results are wanted, "" for
    nowhere. stays: the input must not leave the source. picture: as which the input leaves it, if
    it does. latency_ms, rate: bounds, milliseconds and requests a second. most_error: of codecs.
    Raises `PlanError`."""

    segments: tuple[Segment, ...]
    devices: tuple[Device, ...]
    objective: PlanObjective = PlanObjective.LATENCY
    links: Mapping[tuple[str, str], DeviceLink] = field(default_factory=dict)
    link: DeviceLink = DeviceLink()
    codecs: tuple[Codec, ...] = (NO_CODEC,)
    most_error: float = 0.0
    source: str = ""
    stays: bool = False
    input_bytes: int = 0
    latency_ms: float = inf
    rate: float = 0.0
    picture: JpegCost | None = None

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
        if self.picture is not None and (self.stays or not self.source):
            raise PlanError("a picture is sent by a source, whose input need not stay")
        for device in self.devices:
            if device.speed <= 0 or device.memory <= 0:
                raise PlanError(f"{device.name}: speed and memory are above 0")
            if not 0 < device.share <= 1 or device.period_ms <= 0:
                raise PlanError(f"{device.name}: share is above 0, 1 at most; period_ms above 0")
            if device.times and len(device.times) != len(self.segments):
                count = len(self.segments)
                raise PlanError(f"{device.name}: {len(device.times)} times, of {count} segments")
        if not any(codec.error <= self.most_error for codec in self.codecs):
            raise PlanError(f"each codec changes results by more than {self.most_error:g}")

    def ms(self, device: Device, at: int) -> float:
        """Of a segment on a device that gives it a whole core."""
        return device.times[at] if device.times else self.segments[at].ms / device.speed

    def arrival_ms(self, device: Device, start: int) -> float:
        """Of a device that takes the message before segment `start`; 0.0 where it is at hand."""
        if start:
            return self.handling_ms(device, self.segments[start - 1].out)
        if self.source in ("", device.name):
            return 0.0
        decoding = 0.0 if self.picture is None else self.picture.decode_ms / device.speed
        return self.handling_ms(device, self.sent_bytes) + decoding

    @property
    def sent_bytes(self) -> int:
        """Of the input, where it leaves its source."""
        return self.input_bytes if self.picture is None else self.picture.bytes

    def entering_ms(self, source: Device) -> float:
        """Of the source, for an input that leaves it."""
        encoding = 0.0 if self.picture is None else self.picture.encode_ms / source.speed
        return self.handling_ms(source, self.sent_bytes) + encoding

    def departure_ms(self, device: Device, end: int) -> float:
        """Of a device that sends the message behind segment `end` - 1; 0.0 where nobody waits."""
        is_kept = end == len(self.segments) and self.source in ("", device.name)
        return 0.0 if is_kept else self.handling_ms(device, self.segments[end - 1].out)

    def handling_ms(self, device: Device, size: int) -> float:
        """Of a message of so many bytes at its sender, or at its receiver."""
        is_cold = sum(segment.ms for segment in self.segments) >= COLD_FROM_MS
        usual = HANDLE_MS + COLD_MS * is_cold
        return (usual + size / 1e6 * HANDLE_MS_PER_MB) / device.speed

    def link_of(self, one: str, other: str) -> DeviceLink:
        """Between devices of two sites."""
        found = self.links.get((one, other)) or self.links.get((other, one))
        return found or self.link

    def entrance(self, link: DeviceLink) -> tuple[float, float, Codec]:
        """As `way`, of the input. A picture is as small as it gets."""
        if self.picture is None:
            return self.way(self.input_bytes, link)
        return self._by(JPEG, self.picture.bytes, link)

    def way(self, size: int, link: DeviceLink) -> tuple[float, float, Codec]:
        """Milliseconds of a message of so many bytes on its way, milliseconds for which it fills
        the link, and the codec that makes it the shortest."""
        allowed = (codec for codec in self.codecs if codec.error <= self.most_error)
        found = (self._by(codec, size, link) for codec in allowed)
        return min(found, key=lambda way: way[0])  # the problem has checked that there is one

    @staticmethod
    def _by(codec: Codec, size: int, link: DeviceLink) -> tuple[float, float, Codec]:
        """As `way`, with this codec."""
        fills = size * codec.ratio / link.rate * 1e3
        per_mb = codec.ms_per_mb + HOP_MS_PER_MB
        return HOP_MS + link.rtt_ms / 2 + fills + size / 1e6 * per_mb, fills, codec
