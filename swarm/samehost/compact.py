"""Features and results between processes of one host, in a form that takes few steps to read.

Behind a long run a function's code and data are not in the caches: a decoder that takes 6 us in a
loop takes 90 then (measured: `Features.decode` behind a convolution). So the values that many
requests share (model, stage, names and shapes of tensors) travel as one piece, which is parsed once
and remembered, and all other values have fixed places:

    mark u8 | kind u8 | attempt u16 | sizes of the pieces u16 … | numbers
    id, reply, traceparent | shared values (MessagePack) | packed hops | each tensor's data

The data of a tensor are its bytes, or a claim behind one byte of its length. Compact messages do
not leave the host. A message that does not fit into this form travels as MessagePack
(`swarm.wire.messages`) between processes of one host too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from swarm.errors import DecodeError
from swarm.samehost.lending import Loan
from swarm.subjects import may_answer
from swarm.wire.hops import pack_hop, unpack_hops
from swarm.wire.messages import Features, Result, read_urgency, result_parts
from swarm.wire.tensors import DATATYPES, LIMITS, Claimed, Part, are_referred, plain, read_spec

MARK = 0xC1  # a byte that no MessagePack value begins with
FEATURES, RESULT = 1, 2
# mark | kind | attempt | sizes: id, reply, traceparent, shared, hops | sequence | budget_us
_FEATURES = struct.Struct("<BBHHHHHHqq")
# mark | kind | attempt | sizes: id, shared, hops
_RESULT = struct.Struct("<BBHHHH")
_NO_MORE: tuple[Any, ...] = (0, "", 0, 0)  # weights, accepts, answer_rate, urgency
_MOST_SHARED = 128  # pieces of shared values that are remembered


class _Tensor(NamedTuple):
    """owner: not empty if a claim stands in place of the bytes (see `Loan.owner`)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    owner: str


class _Shared(NamedTuple):
    """The values that many requests have in common. Of a result, the first three count."""

    model: str
    version: str
    tensors: tuple[_Tensor, ...]
    stage: int
    agent: str
    session: str
    host: str
    weights: int = 0
    accepts: str = ""
    answer_rate: int = 0
    urgency: int = 0


# --- writing ----------------------------------------------------------------------


def features_parts(features: Features, loan: Loan) -> list[Part]:
    """The message in pieces: compact, or as MessagePack if it does not fit. loan: on those of the
    tensors that lie in shared memory. Raises `InvalidArgument` for a dtype without a datatype."""
    # Too seldom for places of their own.
    seldom = features.shadow or features.instead or features.refer
    if seldom or are_referred(features.tensors):
        return features.parts(loan.packed)
    specs, data = _tensors(features.tensors, loan)
    try:
        names = f"{features.id}{features.reply}{features.traceparent}".encode("ascii")
        shared = _pack_shared(
            features.model,
            features.version,
            specs,
            features.stage,
            features.agent,
            features.session,
            features.host,
            features.weights,
            features.accepts,
            features.answer_rate,
            features.urgency,
        )
        hops = _hops(features)
        head = _FEATURES.pack(
            MARK,
            FEATURES,
            features.attempt,
            len(features.id),
            len(features.reply),
            len(features.traceparent),
            len(shared),
            len(hops),
            features.sequence,
            features.budget_us,
        )
    except (struct.error, ValueError):
        return features.parts(loan.packed)
    return [b"".join((head, names, shared, hops)), *data]


def answer_parts(result: Result, features: Features, loan: Loan) -> list[Part]:
    """A result in pieces, with the hops of `features`: compact, or as MessagePack if it does not
    fit. For a result whose status is OK and which is not degraded. loan: on those of the outputs
    that lie in shared memory. Raises `InvalidArgument` for a dtype without a datatype."""
    specs, data = _tensors(result.outputs, loan)
    try:
        name = result.id.encode("ascii")
        shared = _pack_shared(result.model, result.version, specs)
        hops = _hops(features)
        head = _RESULT.pack(MARK, RESULT, result.attempt, len(name), len(shared), len(hops))
    except (struct.error, ValueError):
        return result_parts(result, features.all_hops, loan.packed)
    return [b"".join((head, name, shared, hops)), *data]


def _hops(features: Features) -> bytes:
    """All hops, packed. Raises `ValueError` for one that does not fit."""
    return features.packed_hops + b"".join(map(pack_hop, features.hops))


Spec = tuple[str, np.dtype[Any], tuple[int, ...], str]


def _tensors(tensors: Mapping[str, np.ndarray], loan: Loan) -> tuple[tuple[Spec, ...], list[Part]]:
    """What the message says of the tensors, and their data."""
    specs: list[Spec] = []
    data: list[Part] = []
    for name, array in tensors.items():
        shape = array.shape
        claim = loan.claims.get(name)
        if claim is not None:
            wire = claim.to_wire()
            specs.append((name, array.dtype, shape, loan.owner))
            data += (len(wire).to_bytes(1, "little"), wire)
            continue
        if array.dtype not in DATATYPES:  # another byte order, or no datatype at all
            array = plain(array)
        specs.append((name, array.dtype, shape, ""))
        data.append(array.tobytes())  # a copy: messages of one host are small
    return tuple(specs), data


@lru_cache(maxsize=_MOST_SHARED)
def _pack_shared(
    model: str,
    version: str,
    specs: tuple[Spec, ...],
    stage: int = 0,
    agent: str = "",
    session: str = "",
    host: str = "",
    weights: int = 0,
    accepts: str = "",
    answer_rate: int = 0,
    urgency: int = 0,
) -> bytes:
    # The bytes are little-endian, whatever the array is; in shared memory too.
    tensors = [
        (name, DATATYPES[dtype.newbyteorder("<")], shape, owner)
        for name, dtype, shape, owner in specs
    ]
    values = (model, version, tensors, stage, agent, session, host)
    more: tuple[Any, ...] = (weights, accepts, answer_rate, urgency)
    if not urgency:  # older nodes read no more than three
        more = more[:3] if accepts else more[:1] if weights else ()
    packed: bytes = msgpack.packb((*values, *more))
    return packed


# --- reading ----------------------------------------------------------------------


def decode_features(data: bytes | memoryview) -> Features:
    """The features in a message, compact or MessagePack.

    Tensors are read-only arrays, or `Claimed`. Raises `DecodeError`.
    """
    if data[:1] != b"\xc1":
        return Features.decode(data)
    data = bytes(data)
    try:
        _, kind, attempt, id_, reply, trace, shared_size, hops, sequence, budget = (
            _FEATURES.unpack_from(data)
        )
    except struct.error as error:
        raise DecodeError(f"not features: {error}") from None
    start = _FEATURES.size
    middle = start + id_ + reply + trace
    names = _text(data[start:middle])
    if kind != FEATURES or not 0 < id_ <= 128 or not 0 < reply <= 512:
        raise DecodeError("not features: an id and a reply subject are missing, or too long")
    if not may_answer(names[id_ : id_ + reply]):
        raise DecodeError("not features: the reply subject is none of an inbox")
    shared = _read_shared(data[middle : (end := middle + shared_size)], FEATURES)
    return Features(
        names[:id_],
        shared.model,
        shared.version,
        shared.stage,
        names[id_ : id_ + reply],
        budget,
        _read_tensors(data, end + hops, shared.tensors),
        attempt,
        shared.agent,
        sequence,
        shared.session,
        names[id_ + reply :],
        shared.host,
        [],
        data[end : end + hops],
        shared.weights,
        shared.accepts,
        shared.answer_rate,
        urgency=shared.urgency,
    )


def decode_result(data: bytes | memoryview) -> Result:
    """The result in a message, compact or MessagePack.

    Outputs are read-only arrays, or `Claimed`. Raises `DecodeError`.
    """
    if data[:1] != b"\xc1":
        return Result.decode(data)
    data = bytes(data)
    try:
        _, kind, attempt, id_, shared_size, hops = _RESULT.unpack_from(data)
    except struct.error as error:
        raise DecodeError(f"not a result: {error}") from None
    start = _RESULT.size
    middle = start + id_
    end = middle + shared_size
    if kind != RESULT:
        raise DecodeError("not a result")
    shared = _read_shared(data[middle:end], RESULT)
    return Result(
        _text(data[start:middle]),
        shared.model,
        shared.version,
        outputs=_read_tensors(data, end + hops, shared.tensors),
        attempt=attempt,
        hops=tuple(unpack_hops(data[end : end + hops])),
    )


def _text(data: bytes) -> str:
    """Text of characters that may stand in a subject. Raises `DecodeError` for others."""
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
            # As in MessagePack; whoever opens the claim checks it.
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


@lru_cache(maxsize=_MOST_SHARED)
def _read_shared(packed: bytes, kind: int) -> _Shared:
    """Raises `DecodeError`."""
    try:
        model, version, tensors, stage, agent, session, host, *more = msgpack.unpackb(packed)
        specs = tuple(_read_spec(*tensor) for tensor in tensors)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"malformed: {error}") from None
    if not all(type(text) is str for text in (model, version, agent, session, host)):
        raise DecodeError("model, version, agent, session, and host must be strings")
    for text in (model, version):
        if not (0 if kind == RESULT else 1) <= len(_text(text.encode())) <= 128:
            raise DecodeError("model and version must have 1 to 128 characters")
    weights, accepts, rate, urgency = [*more, *_NO_MORE[len(more) :]][:4]
    numbers = (stage, weights, rate)
    if not all(type(number) is int for number in numbers) or len(specs) > LIMITS.tensors:
        raise DecodeError(
            f"stage, weights and rate are numbers; at most {LIMITS.tensors} tensors are accepted"
        )
    if type(accepts) is not str:
        raise DecodeError("the codecs that a requester accepts are a string")
    return _Shared(
        model,
        version,
        specs,
        stage,
        agent,
        session,
        host,
        weights,
        accepts,
        rate,
        read_urgency(urgency),
    )


def _read_spec(name: Any, datatype: Any, shape: Any, owner: Any) -> _Tensor:
    dtype, size = read_spec(name, datatype, shape)
    if type(owner) is not str:
        raise DecodeError(f"tensor {name!r}: its owner must be a string")
    if not size:
        np.empty(shape, dtype)  # raises `ValueError` where the other dimensions are too large
    return _Tensor(name, dtype, tuple(shape), size, owner)
