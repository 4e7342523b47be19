"""What each stage did for a request: as a map in messages, packed between processes of one host."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from swarm.errors import DecodeError

# stage | batch | queue_us | compute_us | length of the node's id, which follows
_PACKED = struct.Struct("<HHIIB")
_MOST_US = (1 << 32) - 1  # 71 minutes; budgets are shorter


class Hop(NamedTuple):
    """One stage's work on one request; times in microseconds on that node's clock."""

    stage: int
    node: str
    queue_us: int
    compute_us: int
    batch: int = 1

    def as_doc(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "node": self.node,
            "queue_us": self.queue_us,
            "compute_us": self.compute_us,
            "batch": self.batch,
        }

    @classmethod
    def from_doc(cls, doc: Any) -> Hop:
        """Raises `DecodeError`."""
        if is_hop(doc):
            return hop_of(doc)
        raise DecodeError("a hop is a map of stage, node, queue_us, compute_us")


def hop_of(doc: Mapping[str, Any]) -> Hop:
    """Of a map that `is_hop`."""
    return Hop(doc["stage"], doc["node"], doc["queue_us"], doc["compute_us"], doc.get("batch", 1))


def is_hop(doc: Any) -> bool:
    """What `Hop.from_doc` accepts: it travels on as it came, and is added up on the way."""
    return (
        type(doc) is dict
        and type(doc.get("queue_us")) is type(doc.get("compute_us")) is int
        and type(doc.get("stage")) is type(doc.get("batch", 1)) is int
        and type(doc.get("node")) is str
    )


def pack_hop(doc: Mapping[str, Any]) -> bytes:
    """A map that `is_hop` in few bytes. Raises `ValueError` for one that does not fit."""
    node: bytes = doc["node"].encode("ascii")
    queue_us, compute_us = min(doc["queue_us"], _MOST_US), min(doc["compute_us"], _MOST_US)
    try:
        head = _PACKED.pack(doc["stage"], doc.get("batch", 1), queue_us, compute_us, len(node))
    except struct.error as error:
        raise ValueError(str(error)) from None
    return head + node


def unpack_hops(packed: bytes) -> list[Hop]:
    """Hops that `pack_hop` packed, one after another. Raises `DecodeError`."""
    hops = []
    at = 0
    while at < len(packed):
        try:
            stage, batch, queue_us, compute_us, size = _PACKED.unpack_from(packed, at)
            at += _PACKED.size + size
            node = str(packed[at - size : at], "ascii")
        except (struct.error, UnicodeDecodeError) as error:
            raise DecodeError(f"packed hops: {error}") from None
        if len(node) != size:
            raise DecodeError("packed hops: truncated")
        hops.append(Hop(stage, node, queue_us, compute_us, batch))
    return hops
