"""A result's latency in parts, from the moments that stages write into a traced request's hops.

A stage adds three fields to its hop:

    at_us           when its run began: microseconds since 1970 by the mesh's common clock, the
                    server's, as the stage estimates it; on one host all read one clock
    lane_us         of `queue_us`: from the moment at which the server stored the message
    batch_wait_us   of `queue_us`: no run was under way; the request waited for company, or for a
                    processor

The rest of `queue_us` is waiting behind other requests. What lies between a run's end and the next
stage's queue is `onward`: packing, sending, storing. What lies before the first stage and behind
the last is known as a sum only, since the requester's clock is its own: `outside`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from swarm.wire.hops import Hop

AT, LANE, BATCH_WAIT = "at_us", "lane_us", "batch_wait_us"
Kind = Literal["outside", "onward", "lane", "queue", "batch wait", "compute"]
LATEST, LONGEST = 1 << 53, 1 << 40  # µs: other nodes say these numbers, and may say any
KINDS: tuple[Kind, ...] = ("outside", "onward", "lane", "queue", "batch wait", "compute")


@dataclass(frozen=True, slots=True)
class TimePart:
    """One piece of a request's time. stage: 0 for what is before or behind all stages. start: µs
    since the first stage's queue began. length: µs."""

    kind: Kind
    stage: int
    node: str
    start: int
    length: int


def moments(at_us: int, lane_us: int, batch_wait_us: int) -> dict[str, int]:
    """The fields that a stage adds to its hop."""
    return {AT: at_us, LANE: max(0, lane_us), BATCH_WAIT: max(0, batch_wait_us)}


def began_us(hop: Hop) -> int | None:
    """When a stage's queue began, µs since 1970; None for a hop without moments."""
    at = _number(hop, AT)
    return None if at is None else at - _length(hop.queue_us)


def parts_of(latency: float, hops: Sequence[Hop]) -> list[TimePart]:
    """The parts of an answered request, in the order of time.

    latency: seconds, as the requester measured it. hops: of the answer. Parts of a hop without
    moments are one `queue` and one `compute` directly behind the part before. Lengths are at least
    0: clocks of two devices may be a little apart.
    """
    parts: list[TimePart] = []
    first = next((began for hop in hops if (began := began_us(hop)) is not None), None)
    end = 0  # µs since the first stage's queue began
    for index, hop in enumerate(hops):
        began = began_us(hop)
        start = end if began is None or first is None else began - first
        if index and start > end:
            before = hops[index - 1]
            parts.append(TimePart("onward", before.stage, before.node, end, start - end))
        start = max(start, end)
        for kind, length in _of_hop(hop):
            if length > 0:
                parts.append(TimePart(kind, hop.stage, hop.node, start, length))
            start += length
        end = start
    outside = round(latency * 1e6) - end
    if outside > 0:
        parts.append(TimePart("outside", 0, "", end, outside))
    return parts


def _of_hop(hop: Hop) -> list[tuple[Kind, int]]:
    queue = _length(hop.queue_us)
    lane = min(_number(hop, LANE) or 0, queue)
    batch = min(_number(hop, BATCH_WAIT) or 0, queue - lane)
    return [
        ("lane", lane),
        ("queue", queue - lane - batch),
        ("batch wait", batch),
        ("compute", _length(hop.compute_us)),
    ]


def _length(told: int) -> int:
    return max(0, min(told, LONGEST))


def _number(hop: Hop, name: str) -> int | None:
    value: Any = hop.extra.get(name)
    return value if type(value) is int and 0 <= value < LATEST else None
