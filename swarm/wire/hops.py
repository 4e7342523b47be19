"""One stage's work on a request: as a map in messages, packed between processes of one host.

Later versions of the code add fields, and every version carries the fields that it does not know:

*As a map*, a hop has the keys `stage`, `node`, `queue_us`, `compute_us`, perhaps `batch` and
`weights`, and any others, which travel on as they came (`Hop.extra`).

*Packed*, each hop is one record, all numbers little-endian:

    size u16 | stage u16 | batch u16 | queue_us u32 | compute_us u32 | length u8 | node | fields …

`size` counts the bytes behind itself, so a reader finds the next record without understanding this
one. Each field is `tag u8 | length u8 | bytes`. The tag `NAMED` stands for a key of the map that
has no tag of its own: its bytes are the MessagePack array [name, value]. A reader skips a field
whose tag it does not know. A hop that does not fit this form travels as a map.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgpack

from swarm.errors import DecodeError

_RECORD = struct.Struct("<HHHIIB")
_SIZE = 2  # bytes of the record's size, which it does not count
_MOST_US = (1 << 32) - 1  # 71 minutes; budgets are shorter
MOST_WEIGHTS = 1 << 53  # a number of weights is less: JSON keeps such integers exactly
LONGEST_CODEC = 32  # characters
DEEPEST = 16  # maps and lists inside each other that JSON gets of a field
NAMED = 0  # tag of a field that says its name
NO_FIELDS: Mapping[str, Any] = {}
_RECORDED = frozenset({"stage", "node", "queue_us", "compute_us", "batch"})
WEIGHTS = "weights"
CODEC = "codec"
CACHED = "cached_ms"  # milliseconds: the age of an answer that the stage had kept
# By step inside a run, the weight versions that answered it, where they were learned.
WEIGHTS_OF = "weights_of"
KEPT = "cached"  # by step, how many of its rows were answered by kept answers
LEFT_OUT = "left_out"  # by step, why the answer does without it
PRIORITIES = "priorities"  # of a stage that has seen some lately; a field without an attribute
_KNOWN = _RECORDED | {WEIGHTS, CODEC}
_unpack = partial(msgpack.unpackb, raw=False, strict_map_key=True, max_ext_len=0)


class Hop(NamedTuple):
    """One stage's work on one request; times in microseconds on that node's clock.

    batch: requests in the run. extra: the fields that this version of the code does not know, by
    name. A field of a later version stands there until it gets an attribute. weights: the number of
    the weights that the run computed with (`swarm.learning.record`), 0 for the base's. codec: how
    the stage's input came (`swarm.wire.tensors.Coding`), "" as the plain bytes.
    """

    stage: int
    node: str
    queue_us: int
    compute_us: int
    batch: int = 1
    extra: Mapping[str, Any] = NO_FIELDS
    weights: int = 0
    codec: str = ""

    def as_doc(self) -> dict[str, Any]:
        """The map that travels in messages."""
        doc = {
            "stage": self.stage,
            "node": self.node,
            "queue_us": self.queue_us,
            "compute_us": self.compute_us,
            "batch": self.batch,
        }
        if self.weights:
            doc[WEIGHTS] = self.weights
        if self.codec:
            doc[CODEC] = self.codec
        return {**self.extra, **doc} if self.extra else doc

    def as_json(self) -> dict[str, Any]:
        """The map for JSON: an unknown field that JSON cannot say (bytes, infinity) is left out."""
        return {name: value for name, value in self.as_doc().items() if _is_json(name, value)}

    @classmethod
    def from_doc(cls, doc: Any) -> Hop:
        """Raises `DecodeError`."""
        if is_hop(doc):
            return hop_of(doc)
        raise DecodeError("a hop is a map of stage, node, queue_us, compute_us")


def hop_of(doc: Mapping[str, Any]) -> Hop:
    """The hop of a map that `is_hop`."""
    return Hop(
        doc["stage"],
        doc["node"],
        doc["queue_us"],
        doc["compute_us"],
        doc.get("batch", 1),
        _unknown_fields(doc),
        _checked_weights(doc.get(WEIGHTS, 0)),
        _checked_codec(doc.get(CODEC, "")),
    )


def is_hop(doc: Any) -> bool:
    """Whether `Hop.from_doc` accepts it. A stage checks a hop so and passes the map on."""
    return (
        type(doc) is dict
        and type(doc.get("queue_us")) is type(doc.get("compute_us")) is int
        and type(doc.get("stage")) is type(doc.get("batch", 1)) is int
        and type(doc.get("node")) is str
    )


def pack_hop(doc: Mapping[str, Any]) -> bytes:
    """The record of a map that `is_hop`. Raises `ValueError` for one that does not fit."""
    node: bytes = doc["node"].encode("ascii")
    extra = _unknown_fields(doc)
    if weights := _checked_weights(doc.get(WEIGHTS, 0)):
        # Under its name: a reader that does not know it passes it on.
        extra = {**extra, WEIGHTS: weights}
    if codec := _checked_codec(doc.get(CODEC, "")):
        extra = {**extra, CODEC: codec}
    fields = _pack_extra(extra) if extra else b""
    queue_us, compute_us = min(doc["queue_us"], _MOST_US), min(doc["compute_us"], _MOST_US)
    size = _RECORD.size - _SIZE + len(node) + len(fields)
    try:
        head = _RECORD.pack(
            size, doc["stage"], doc.get("batch", 1), queue_us, compute_us, len(node)
        )
    except struct.error as error:
        raise ValueError(str(error)) from None
    return head + node + fields


def unpack_hops(packed: bytes) -> list[Hop]:
    """The hops of records one after another. Raises `DecodeError`."""
    hops = []
    at = 0
    while at < len(packed):
        try:
            size, stage, batch, queue_us, compute_us, length = _RECORD.unpack_from(packed, at)
            begin = at + _RECORD.size
            behind, at = begin + length, at + _SIZE + size
            if not behind <= at <= len(packed):
                raise DecodeError("packed hops: truncated")
            node = str(packed[begin:behind], "ascii")
        except (struct.error, UnicodeDecodeError) as error:
            raise DecodeError(f"packed hops: {error}") from None
        extra, weights, codec = NO_FIELDS, 0, ""
        if behind < at:
            fields = _unpack_extra(packed[behind:at])
            weights = _checked_weights(fields.pop(WEIGHTS, 0))
            codec = _checked_codec(fields.pop(CODEC, ""))
            extra = fields or NO_FIELDS
        hops.append(Hop(stage, node, queue_us, compute_us, batch, extra, weights, codec))
    return hops


def _is_json(name: Any, value: Any, depth: int = 0) -> bool:
    if type(name) is not str:  # msgpack takes bytes as keys of inner maps
        return False
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is dict:
        value, names = value.values(), value.keys()
        return depth < DEEPEST and all(map(partial(_is_json, depth=depth + 1), names, value))
    if type(value) is list:
        return depth < DEEPEST and all(_is_json("", each, depth + 1) for each in value)
    return value is None or type(value) in (int, bool, str)


def _checked_weights(value: Any) -> int:
    """The number of a weight version; 0 for what is none."""
    return value if type(value) is int and 0 < value < MOST_WEIGHTS else 0


def _checked_codec(value: Any) -> str:
    """A codec's name; "" for what is none."""
    return value if type(value) is str and len(value) <= LONGEST_CODEC else ""


def _unknown_fields(doc: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(doc) == len(_RECORDED) and "batch" in doc:
        return NO_FIELDS  # as a rule: a map that `is_hop` has the other four
    return {key: value for key, value in doc.items() if key not in _KNOWN}


def _pack_extra(extra: Mapping[str, Any]) -> bytes:
    """Raises `ValueError` where a field does not fit."""
    fields = bytearray()
    for name, value in extra.items():
        if type(name) is not str:
            raise ValueError("a field's name is a string")
        try:
            packed: bytes = msgpack.packb((name, value))
        except (TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None
        if len(packed) > 255:
            raise ValueError(f"field {name!r:.80} has {len(packed)} bytes; at most 255 fit")
        fields += bytes((NAMED, len(packed))) + packed
    return bytes(fields)


def _unpack_extra(packed: bytes) -> dict[str, Any]:
    """Raises `DecodeError`."""
    extra: dict[str, Any] = {}
    at = 0
    while at < len(packed):
        tag, end = packed[at], at + 2 + (packed[at + 1] if at + 1 < len(packed) else 0)
        field, at = packed[at + 2 : end], end
        if end > len(packed):
            raise DecodeError("packed hops: a field is truncated")
        if tag == NAMED:
            name, value = _named(field)
            extra[name] = value
    return extra


def _named(field: bytes) -> tuple[str, Any]:
    try:
        name, value = _unpack(field)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"packed hops: a field is no name with a value: {error}") from None
    if type(name) is not str or name in _RECORDED:
        raise DecodeError("packed hops: a field's name is a string, and none of the record's")
    return name, value
