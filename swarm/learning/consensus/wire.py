"""Messages about learning as bytes: signed by their node, checked before anything is allocated.

An envelope is a MessagePack map:

    v  version, 1          k  the sender's public key, nkey form
    b  the body's bytes    s  the key's signature of b for the purpose `CONTEXT`

A body is a MessagePack map:

    t  kind: "delta" (entries to add), "ask" (for a snapshot), "snapshot" (its answer: the whole
       public estimate)
    w  scope: [mesh, model, version, base (32 bytes), epoch]
    n  the sender's node id
    r  run: grows with each start of the sender      q  sequence: deltas of this run
    g  the sender's step size
    o  16 random bytes of the asker, in "ask" and in the snapshot that answers it
    x  tensors: {name: [shape, values' bytes each (2 or 4), encoding, indices, values]}
    f  in place of x, [bytes, SHA-256] of the same map, which lies in the object store

Indices are of the flattened tensor. Encodings: 0 all entries, no indices; 1 indices as uint32,
ascending; 2 indices as a map of bits, the lowest bit of a byte first. Values are float16 or
float32. All numbers are little-endian. Unknown fields are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from swarm.errors import DecodeError, SwarmError
from swarm.learning.consensus.layout import Layout, Vector
from swarm.learning.consensus.refusals import Reason, RefusedDelta
from swarm.learning.consensus.sparse import Sparse
from swarm.security.identity import Identity
from swarm.security.signing import SIGNATURE_BYTES, sign, verify
from swarm.wire.maps import pack, unpack_map

VERSION = 1
CONTEXT = "swarm delta 1"
KINDS = frozenset(("delta", "ask", "snapshot"))
NONCE_BYTES = 16
BASE_BYTES = 32
INLINE_BYTES = 256 * 1024  # tensors above this travel by the object store
ENVELOPE_BYTES = 2048  # bytes of a message beside its tensors
ALL, LIST, BITS = 0, 1, 2
_LARGEST_NUMBER = 2**62


class Scope(NamedTuple):
    """What a message is about. base: SHA-256 of what all learners begin from; epoch: grows with
    each rollback of the learned weights."""

    mesh: str
    model: str
    version: str
    base: bytes
    epoch: int


class Reference(NamedTuple):
    """Tensors that lie in the object store."""

    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class ConsensusMessage:
    """A verified message whose tensors are not looked at yet. tensors: None where the message
    carries none; undecoded, or a reference."""

    key: str
    kind: str
    scope: Scope
    node: str
    run: int
    sequence: int
    step: float = 1.0
    nonce: bytes = b""
    tensors: Mapping[str, Any] | Reference | None = None


# --- written --------------------------------------------------------------------------------


def encode(identity: Identity, message: ConsensusMessage) -> bytes:
    """The signed bytes of a message; its `key` is ignored, the identity's is written."""
    body: dict[str, Any] = {
        "t": message.kind,
        "w": list(message.scope),
        "n": message.node,
        "r": message.run,
        "q": message.sequence,
        "g": message.step,
    }
    if message.nonce:
        body["o"] = message.nonce
    if isinstance(message.tensors, Reference):
        body["f"] = list(message.tensors)
    elif message.tensors is not None:
        body["x"] = message.tensors
    packed = pack(body)
    signature = sign(identity, CONTEXT, packed)
    return pack({"v": VERSION, "k": identity.public, "s": signature, "b": packed})


def tensors_of(layout: Layout, change: Sparse, *, half: bool) -> dict[str, list[Any]]:
    """Entries of a flat vector as the tensors of a message; those without an entry are left out.

    half: values as float16, which must hold them exactly (`sparse.top_k` with `half`).
    """
    tensors: dict[str, list[Any]] = {}
    for name, (start, end) in layout.spans.items():
        low, high = np.searchsorted(change.indices, (start, end))
        if low == high:
            continue
        indices = change.indices[low:high] - np.uint32(start)
        values = change.values[low:high].astype("<f2" if half else "<f4")
        encoding, packed = _pack_indices(indices, end - start)
        width = values.dtype.itemsize
        tensors[name] = [list(layout.shapes[name]), width, encoding, packed, values.tobytes()]
    return tensors


def whole(layout: Layout, vector: Vector) -> dict[str, list[Any]]:
    """A whole vector as the tensors of a message, exact."""
    indices = np.flatnonzero(vector).astype(np.uint32)
    return tensors_of(layout, Sparse(indices, vector[indices], layout.size), half=False)


def _pack_indices(indices: np.ndarray, size: int) -> tuple[int, bytes]:
    """The shortest encoding of ascending indices below `size`."""
    if len(indices) == size:
        return ALL, b""
    if 4 * len(indices) <= (size + 7) // 8:
        return LIST, indices.astype("<u4").tobytes()
    bits = np.zeros(size, np.uint8)
    bits[indices] = 1
    return BITS, np.packbits(bits, bitorder="little").tobytes()


def store_form(tensors: Mapping[str, Any]) -> tuple[Reference, bytes]:
    """The tensors as an object of the object store, and the reference to it."""
    data = pack(tensors)
    return Reference(len(data), sha256(data).digest()), data


def most_entries(layout: Layout, budget: int, *, half: bool) -> int:
    """Entries of a delta of which a message takes at most `budget` bytes, by the shorter of both
    encodings of their indices; 1 at least."""
    space = budget - ENVELOPE_BYTES // 4 - sum(len(name) + 32 for name in layout.shapes)
    width = 2 if half else 4
    by_list = space // (width + 4)
    by_bits = (space - (layout.size + 7) // 8) // width
    return int(max(1, min(layout.size, max(by_list, by_bits))))


# --- read -----------------------------------------------------------------------------------


def most_bytes(layout: Layout) -> int:
    """Bytes that the tensors of any honest message take at most."""
    names = sum(len(name.encode()) + 64 for name in layout.shapes)
    return 4 * layout.size + layout.size // 8 + names + 64


def decode(payload: bytes | memoryview, layout: Layout) -> ConsensusMessage:
    """A message whose signature holds. Raises `RefusedDelta`: `TOO_LARGE` by its size alone,
    `MALFORMED`, `FORGED`."""
    most = ENVELOPE_BYTES + min(most_bytes(layout), INLINE_BYTES)
    if len(payload) > most:
        raise RefusedDelta(Reason.TOO_LARGE, f"{len(payload)} bytes, at most {most}")
    envelope = _map(payload, most)
    key: Any = envelope.get("k")
    body: Any = envelope.get("b")
    signature: Any = envelope.get("s")
    if envelope.get("v") != VERSION:
        raise RefusedDelta(Reason.MALFORMED, "another version of the form")
    if not isinstance(key, str) or not _is_bytes(body) or not _is_bytes(signature, SIGNATURE_BYTES):
        raise RefusedDelta(Reason.MALFORMED, "an envelope without key, body or signature")
    body = bytes(body)
    try:
        verify(key, CONTEXT, body, bytes(signature))
    except SwarmError as error:
        raise RefusedDelta(Reason.FORGED, str(error)) from None
    return _message(key, _map(body, most))


def _message(key: str, body: Mapping[str, Any]) -> ConsensusMessage:
    kind, scope, node, nonce = body.get("t"), body.get("w"), body.get("n"), body.get("o", b"")
    run: Any = body.get("r")
    sequence: Any = body.get("q")
    step = body.get("g")
    if (
        type(kind) is not str
        or kind not in KINDS
        or not isinstance(node, str)
        or not 0 < len(node) <= 128
    ):
        raise RefusedDelta(Reason.MALFORMED, "no known kind, or no node")
    if not _is_number(run) or not _is_number(sequence):
        raise RefusedDelta(Reason.MALFORMED, "run and sequence are whole numbers from 0")
    if type(step) is not float or not 0 < step <= 1:
        raise RefusedDelta(Reason.MALFORMED, "a step size is above 0 and at most 1")
    if not _is_bytes(nonce) or len(nonce) not in (0, NONCE_BYTES):
        raise RefusedDelta(Reason.MALFORMED, f"a nonce has {NONCE_BYTES} bytes")
    tensors: Any = body.get("x")
    if "f" in body:
        tensors = _reference(body["f"])
    elif tensors is not None and type(tensors) is not dict:
        raise RefusedDelta(Reason.MALFORMED, "tensors are a map")
    return ConsensusMessage(
        key, kind, _scope(scope), node, run, sequence, step, bytes(nonce), tensors
    )


def _scope(doc: Any) -> Scope:
    if type(doc) is not list or len(doc) != 5:
        raise RefusedDelta(Reason.MALFORMED, "a scope has five parts")
    *names, base, epoch = doc
    if not all(isinstance(name, str) and len(name) <= 128 for name in names):
        raise RefusedDelta(Reason.MALFORMED, "mesh, model and version are texts")
    if not _is_bytes(base, BASE_BYTES) or not _is_number(epoch):
        raise RefusedDelta(Reason.MALFORMED, f"a base has {BASE_BYTES} bytes, an epoch is a number")
    return Scope(names[0], names[1], names[2], bytes(base), epoch)


def _reference(doc: Any) -> Reference:
    if type(doc) is not list or len(doc) != 2 or not _is_number(doc[0]) or not _is_bytes(doc[1]):
        raise RefusedDelta(Reason.MALFORMED, "a reference is a size and a hash")
    return Reference(doc[0], bytes(doc[1]))


def check_reference(reference: Reference, layout: Layout) -> None:
    """Raises `RefusedDelta` for a claim of more bytes than any honest delta has: it is not
    fetched."""
    if reference.size > most_bytes(layout):
        raise RefusedDelta(
            Reason.TOO_LARGE, f"{reference.size} bytes claimed, at most {most_bytes(layout)}"
        )


def read_stored(reference: Reference, data: bytes, layout: Layout) -> Mapping[str, Any]:
    """The tensors of an object that was fetched. Raises `RefusedDelta`."""
    if len(data) != reference.size or sha256(data).digest() != reference.sha256:
        raise RefusedDelta(Reason.FORGED, "the object is not the one that was signed")
    return _map(data, most_bytes(layout))


def read_tensors(tensors: Mapping[str, Any], layout: Layout) -> Sparse:
    """The entries of a flat vector that a message carries. Nothing is allocated that is larger than
    the message or the layout.

    Raises `RefusedDelta` with `UNKNOWN_TENSOR`, `WRONG_SHAPE`, `MALFORMED`, `UNSORTED`,
    `DUPLICATE`, `OUT_OF_RANGE` or `NOT_FINITE`.
    """
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, doc in tensors.items():
        span = layout.spans.get(name)
        if span is None:
            raise RefusedDelta(Reason.UNKNOWN_TENSOR, f"{name!r:.80} is not learned here")
        if type(doc) is not list or len(doc) != 5:
            raise RefusedDelta(Reason.MALFORMED, f"tensor {name!r} has five parts")
        if doc[0] != list(layout.shapes[name]):
            raise RefusedDelta(
                Reason.WRONG_SHAPE, f"tensor {name!r} is {layout.shapes[name]}, not {doc[0]!r:.80}"
            )
        indices, values = _read_tensor(name, doc, span[1] - span[0])
        parts[name] = (indices + np.uint32(span[0]), values)
    ordered = [parts[name] for name in layout.spans if name in parts]
    if not ordered:
        return Sparse(np.empty(0, np.uint32), np.empty(0, np.float32), layout.size)
    return Sparse(
        np.concatenate([indices for indices, _ in ordered]),
        np.concatenate([values for _, values in ordered]),
        layout.size,
    )


def _read_tensor(name: str, doc: list[Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    _, width, encoding, packed, data = doc
    if type(width) is not int or width not in (2, 4):
        raise RefusedDelta(Reason.MALFORMED, f"tensor {name!r}: values are float16 or float32")
    if not _is_bytes(packed) or not _is_bytes(data) or len(data) % width:
        raise RefusedDelta(Reason.MALFORMED, f"tensor {name!r}: indices and values are bytes")
    values = np.frombuffer(data, f"<f{width}").astype(np.float32)
    if not np.isfinite(values).all():
        raise RefusedDelta(Reason.NOT_FINITE, f"tensor {name!r} holds NaN or infinity")
    indices = _read_indices(name, encoding, packed, size)
    if len(indices) != len(values):
        raise RefusedDelta(
            Reason.MALFORMED, f"tensor {name!r}: {len(indices)} indices, {len(values)} values"
        )
    return indices, values


def _read_indices(name: str, encoding: Any, packed: bytes | memoryview, size: int) -> np.ndarray:
    if encoding == ALL and not packed:
        return np.arange(size, dtype=np.uint32)
    if encoding == BITS and len(packed) == (size + 7) // 8:
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        if bits[size:].any():
            raise RefusedDelta(Reason.OUT_OF_RANGE, f"tensor {name!r}: an index of {size} or more")
        return np.flatnonzero(bits).astype(np.uint32)
    if encoding != LIST or len(packed) % 4:
        raise RefusedDelta(Reason.MALFORMED, f"tensor {name!r}: an encoding that nobody knows")
    indices = np.frombuffer(packed, "<u4").astype(np.uint32)
    if len(indices) and int(indices.max()) >= size:
        raise RefusedDelta(Reason.OUT_OF_RANGE, f"tensor {name!r}: an index of {size} or more")
    if (indices[1:] <= indices[:-1]).any():
        if len(np.unique(indices)) < len(indices):
            raise RefusedDelta(Reason.DUPLICATE, f"tensor {name!r}: an index that stands twice")
        raise RefusedDelta(Reason.UNSORTED, f"tensor {name!r}: indices do not ascend")
    return indices


def _map(data: bytes | memoryview, most: int) -> dict[str, Any]:
    try:
        return unpack_map(data, most)
    except DecodeError as error:
        raise RefusedDelta(Reason.MALFORMED, str(error)) from None


def _is_bytes(value: object, length: int | None = None) -> bool:
    return isinstance(value, bytes | memoryview) and length in (None, len(value))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_NUMBER and math.isfinite(value)
