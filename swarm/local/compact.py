"""Features and results between processes of one host, in a form that takes few steps to read.

Behind a long run a function's code and data are not in the caches: what takes 6 us in a loop takes
90 then (measured, `Features.decode` behind a convolution). So what is the same for every request
(model, stage, names and shapes of tensors) travels as one piece, which is parsed once, and the rest
has fixed places:

    mark u8 | kind u8 | attempt u16 | sizes of the pieces u16 … | numbers
    id, reply, traceparent | what is the same (MessagePack) | packed hops | each tensor's data

A tensor's data are its bytes, or a claim with its length. Nothing here leaves the host but as
MessagePack (`swarm.wire.messages`), which also carries what does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from swarm.errors import DecodeError
from swarm.local.lending import Loan
from swarm.wire.hops import pack_hop, unpack_hops
from swarm.wire.messages import Features, Result, result_parts
from swarm.wire.tensors import DATATYPES, LIMITS, Claimed, Part, memory_of, plain, read_spec

MARK = 0xC1  # a byte that no MessagePack value begins with
FEATURES, RESULT = 1, 2
# mark | kind | attempt | sizes: id, reply, traceparent, same, hops | sequence | budget_us
_FEATURES = struct.Struct("<BBHHHHHHqq")
# mark | kind | attempt | sizes: id, same, hops
_RESULT = struct.Struct("<BBHHHH")
_KINDS = 128  # of messages that are remembered


class _Tensor(NamedTuple):
    """owner: where to ask for its bytes if a claim on them cannot be used; "": they are here."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    owner: str


class _Same(NamedTuple):
    """What many requests have in common; the first two are a result's."""

    model: str
    version: str
    tensors: tuple[_Tensor, ...]
    stage: int
    agent: str
    session: str
    host: str


# --- writing ----------------------------------------------------------------------


def features_parts(features: Features, lent: Loan) -> list[Part]:
    """The message in pieces: compact, or as MessagePack if it does not fit. `lent`: what of the
    tensors lies in shared memory. Raises `InvalidArgument` for a dtype without a datatype."""
    specs, data = _tensors(features.tensors, lent)
    try:
        names = f"{features.id}{features.reply}{features.traceparent}".encode("ascii")
        same = _same(
            features.model,
            features.version,
            specs,
            features.stage,
            features.agent,
            features.session,
            features.host,
        )
        hops = _hops(features)
        head = _FEATURES.pack(
            MARK,
            FEATURES,
            features.attempt,
            len(features.id),
            len(features.reply),
            len(features.traceparent),
            len(same),
            len(hops),
            features.sequence,
            features.budget_us,
        )
    except (struct.error, ValueError):
        return features.parts(lent.packed)
    return [b"".join((head, names, same, hops)), *data]


def answer_parts(result: Result, features: Features, lent: Loan) -> list[Part]:
    """The same for a result whose status is OK and which is not degraded, with the hops of
    `features`."""
    specs, data = _tensors(result.outputs, lent)
    try:
        name = result.id.encode("ascii")
        same = _same(result.model, result.version, specs)
        hops = _hops(features)
        head = _RESULT.pack(MARK, RESULT, result.attempt, len(name), len(same), len(hops))
    except (struct.error, ValueError):
        return result_parts(result, features.all_hops, lent.packed)
    return [b"".join((head, name, same, hops)), *data]


def _hops(features: Features) -> bytes:
    """Raises `ValueError` for one that does not fit."""
    return features.packed_hops + b"".join(map(pack_hop, features.hops))


Spec = tuple[str, np.dtype[Any], tuple[int, ...], str]


def _tensors(tensors: Mapping[str, np.ndarray], lent: Loan) -> tuple[tuple[Spec, ...], list[Part]]:
    """What is said of them, and their data."""
    specs: list[Spec] = []
    data: list[Part] = []
    for name, array in tensors.items():
        shape = array.shape
        claim = lent.claims.get(name)
        if claim is not None:
            wire = claim.to_wire()
            specs.append((name, array.dtype, shape, lent.owner))
            data += (len(wire).to_bytes(1, "little"), wire)
            continue
        array = plain(array)
        specs.append((name, array.dtype, shape, ""))
        data.append(memory_of(array))
    return tuple(specs), data


@lru_cache(maxsize=_KINDS)
def _same(
    model: str,
    version: str,
    specs: tuple[Spec, ...],
    stage: int = 0,
    agent: str = "",
    session: str = "",
    host: str = "",
) -> bytes:
    # In shared memory too they are little-endian, whatever the array was.
    tensors = [
        (name, DATATYPES[dtype.newbyteorder("<")], shape, owner)
        for name, dtype, shape, owner in specs
    ]
    packed: bytes = msgpack.packb((model, version, tensors, stage, agent, session, host))
    return packed


# --- reading ----------------------------------------------------------------------


def decode_features(data: bytes | memoryview) -> Features:
    """Compact or MessagePack. Raises `DecodeError`."""
    if data[:1] != b"\xc1":
        return Features.decode(data)
    data = bytes(data)
    try:
        _, kind, attempt, id_, reply, trace, same_, hops, sequence, budget = _FEATURES.unpack_from(
            data
        )
    except struct.error as error:
        raise DecodeError(f"not features: {error}") from None
    start = _FEATURES.size
    middle = start + id_ + reply + trace
    names = _text(data[start:middle])
    if kind != FEATURES or not 0 < id_ <= 128 or not 0 < reply <= 512:
        raise DecodeError("not features: an id and a reply subject are missing, or too long")
    same = _read_same(data[middle : (end := middle + same_)], FEATURES)
    return Features(
        names[:id_],
        same.model,
        same.version,
        same.stage,
        names[id_ : id_ + reply],
        budget,
        _read_tensors(data, end + hops, same.tensors),
        attempt,
        same.agent,
        sequence,
        same.session,
        names[id_ + reply :],
        same.host,
        [],
        data[end : end + hops],
    )


def decode_result(data: bytes | memoryview) -> Result:
    """Compact or MessagePack. Raises `DecodeError`."""
    if data[:1] != b"\xc1":
        return Result.decode(data)
    data = bytes(data)
    try:
        _, kind, attempt, id_, same_, hops = _RESULT.unpack_from(data)
    except struct.error as error:
        raise DecodeError(f"not a result: {error}") from None
    start = _RESULT.size
    middle = start + id_
    end = middle + same_
    if kind != RESULT:
        raise DecodeError("not a result")
    same = _read_same(data[middle:end], RESULT)
    return Result(
        _text(data[start:middle]),
        same.model,
        same.version,
        outputs=_read_tensors(data, end + hops, same.tensors),
        attempt=attempt,
        hops=tuple(unpack_hops(data[end : end + hops])),
    )


def _text(data: bytes) -> str:
    """Raises `DecodeError` for what cannot stand in a subject."""
    try:
        text = str(data, "ascii")
    except UnicodeDecodeError as error:
        raise DecodeError(f"names must be ASCII: {error}") from None
    if not text.isprintable() or " " in text:
        raise DecodeError("names must be printable, without spaces")
    return text


def _read_tensors(data: bytes, at: int, specs: tuple[_Tensor, ...]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, dtype, shape, nbytes, owner in specs:
        if owner:
            start = at + 1
            at = start + data[at] if at < len(data) else start
            # As in MessagePack; who looks at it checks both.
            document = {"claim": data[start:at], "owner": owner}
            tensors[name] = Claimed(dtype, shape, nbytes, document)
            continue
        end = at + nbytes
        if end > len(data):
            raise DecodeError(f"tensor {name!r}: {end - len(data)} bytes are missing")
        # A slice begins at an aligned address, the middle of a message need not.
        tensors[name] = np.ndarray(shape, dtype, data[at:end])
        at = end
    if at != len(data):
        raise DecodeError(f"{len(data) - at} bytes behind the last tensor")
    return tensors


@lru_cache(maxsize=_KINDS)
def _read_same(packed: bytes, kind: int) -> _Same:
    """Raises `DecodeError`."""
    try:
        model, version, tensors, stage, agent, session, host = msgpack.unpackb(packed)
        specs = tuple(_read_spec(*tensor) for tensor in tensors)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"malformed: {error}") from None
    if not all(type(text) is str for text in (model, version, agent, session, host)):
        raise DecodeError("model, version, agent, session, and host must be strings")
    for text in (model, version):
        if not (0 if kind == RESULT else 1) <= len(_text(text.encode())) <= 128:
            raise DecodeError("model and version must have 1 to 128 characters")
    if type(stage) is not int or len(specs) > LIMITS.tensors:
        raise DecodeError(f"a stage is a number; at most {LIMITS.tensors} tensors are accepted")
    return _Same(model, version, specs, stage, agent, session, host)


def _read_spec(name: Any, datatype: Any, shape: Any, owner: Any) -> _Tensor:
    dtype, size = read_spec(name, datatype, shape)
    if type(owner) is not str:
        raise DecodeError(f"tensor {name!r}: its owner must be a string")
    if not size:
        np.empty(shape, dtype)  # raises `ValueError` where the other dimensions are too large
    return _Tensor(name, dtype, tuple(shape), size, owner)
