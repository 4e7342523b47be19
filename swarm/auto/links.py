"""What a node behind a slow link tells of it, and how long tensors are on that link. Pure.

All messages between hosts go by the server, so a node has one link: down to it and up from it. The
sender of a message chooses its codec at the moment of sending (`swarm.wire.codec_choice`): a plan
prescribes none, and counts with the one that will be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from swarm.wire.codec_choice import AUTO, COSTS, SLOWER, CodecChoice
from swarm.wire.tensors import Coding

KEY = "link"  # in the gossip: [round trip in microseconds, down, up]


@dataclass(frozen=True, slots=True)
class NodeLink:
    """round_trip_us: to the server and back. down, up: bytes a second; 0 where nothing is seen of
    it, because it is fast."""

    round_trip_us: int = 0
    down: int = 0
    up: int = 0


NEAR = NodeLink()


def link_of(values: Mapping[str, object]) -> NodeLink:
    """As a node gossips it. values: those of its gossip, checked by `swarm.auto.advertised`."""
    told = values.get(KEY)
    return NodeLink(*told) if isinstance(told, list | tuple) else NEAR


@lru_cache(maxsize=4096)
def time_on_link(size: int, rate: int, codings: tuple[Coding, ...]) -> float:
    """Microseconds of tensors of `size` bytes at `rate` bytes a second (0: none), encoding and
    decoding included. codings: those of which the sender may choose."""
    if rate <= 0:
        return 0.0
    chosen = CodecChoice().best(AUTO, size, rate, codings)
    cost = COSTS.get(chosen)
    if cost is None:
        return size / rate * 1e6
    return (size / cost.ratio / rate + size * cost.seconds * SLOWER) * 1e6
