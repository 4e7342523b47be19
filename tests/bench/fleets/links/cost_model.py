"""Where a split pays: the time of one frame, from parts that were measured. Pure.

One frame is on its way at a time, and the result is wanted at the core. The device is `slower`
times as slow as the core. A split sends the features of a cut, whose layers before it are the
*head*, and behind it the *tail*.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds on the core, and bytes on the wire.

    head, tail: of the layers. coding: of encoding and decoding a cut's features together. jpeg: of
    encoding and decoding a picture together. cut, picture, result: bytes, as they are sent.
    """

    head: float
    tail: float
    coding: float
    jpeg: float
    cut: int
    picture: int
    result: int = 64


@dataclass(frozen=True, slots=True)
class Link:
    """rate: bytes a second. round_trip: seconds."""

    rate: float
    round_trip: float


def latencies(parts: Parts, link: Link, slower: float) -> dict[str, float]:
    """Seconds of a frame: `all at the edge`, `jpeg` to the core, `split`."""
    half = link.round_trip / 2
    whole = parts.head + parts.tail
    # The device does half of the coding, and the core the other half.
    both = (slower + 1) / 2
    return {
        "all at the edge": slower * whole + half + parts.result / link.rate,
        "jpeg": parts.jpeg * both + parts.picture / link.rate + half + whole,
        "split": slower * parts.head
        + parts.coding * both
        + parts.cut / link.rate
        + half
        + parts.tail,
    }


def rates(parts: Parts, link: Link, slower: float) -> dict[str, float]:
    """Frames a second with many on their way: the slowest of device, link and core decides."""
    whole = parts.head + parts.tail
    half_jpeg, half_coding = parts.jpeg / 2, parts.coding / 2
    slowest = {
        "all at the edge": max(slower * whole, parts.result / link.rate),
        "jpeg": max(slower * half_jpeg, parts.picture / link.rate, whole + half_jpeg),
        "split": max(
            slower * (parts.head + half_coding),
            parts.cut / link.rate,
            parts.tail + half_coding,
        ),
    }
    return {way: 1 / seconds for way, seconds in slowest.items()}


def quickest(parts: Parts, link: Link, slower: float) -> str:
    """The way with the least latency."""
    times = latencies(parts, link, slower)
    return min(times, key=lambda way: times[way])


def cameras_a_core(parts: Parts) -> float:
    """How many times as many cameras one core serves with a split as with pictures."""
    return (parts.head + parts.tail + parts.jpeg / 2) / (parts.tail + parts.coding / 2)
