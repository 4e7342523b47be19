"""The parsers of deltas and of a ledger."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from bench.hostile.message_targets import MESSAGEPACK_FLOOR
from bench.hostile.target import Case, Target, json_objects
from swarm.learning.consensus import wire
from swarm.learning.consensus.layout import Layout
from swarm.learning.record import Ledger
from swarm.security.identity import Identity
from swarm.security.signing import sign
from swarm.wire.maps import pack, unpack_map

_LAYOUT = Layout({"weight": (6, 4), "bias": (4,)})
_SCOPE = wire.Scope("default", "digits", "1", b"\x01" * 32, 0)


def _open_delta(stack: ExitStack) -> Case:
    identity = Identity(b"\x07" * 32)
    vector = np.linspace(-1, 1, _LAYOUT.size).astype(np.float32)
    tensors = wire.whole(_LAYOUT, vector)

    def body(kind: str, tensors: Any, nonce: bytes = b"") -> bytes:
        message = wire.ConsensusMessage("", kind, _SCOPE, "node-a", 1, 3, 0.5, nonce, tensors)
        envelope = unpack_map(wire.encode(identity, message), 1 << 20)
        inner: bytes = envelope["b"]
        return inner

    def signed(inner: bytes) -> bytes:
        signature = sign(identity, wire.CONTEXT, inner)
        return pack({"v": wire.VERSION, "k": identity.public, "s": signature, "b": inner})

    def read(data: bytes) -> None:
        message = wire.decode(data, _LAYOUT)
        if isinstance(message.tensors, wire.Reference):
            wire.check_reference(message.tensors, _LAYOUT)
        elif message.tensors is not None:
            wire.read_tensors(message.tensors, _LAYOUT)

    seeds = (
        body("delta", tensors),
        body("snapshot", tensors, b"\x05" * wire.NONCE_BYTES),
        body("mean", wire.Reference(400, b"\x09" * 32)),
        body("ask", None, b"\x05" * wire.NONCE_BYTES),
    )
    return Case(seeds, read, signed, floor=MESSAGEPACK_FLOOR)


def _open_ledger(stack: ExitStack) -> Case:
    identity = Identity(b"\x08" * 32)
    ledger = Ledger("ab" * 32)
    values = {"weight": np.ones((6, 4), np.float32)}
    for at in range(3):
        ledger = ledger.minted(
            values,
            by="node-a",
            at=1e9 + at,
            accuracy=0.9,
            samples=10,
            taught=["node-b"],
            key=identity.public,
            sign=identity.sign,
        )
    seeds = (ledger.to_json(), ledger.restored(1, by="node-a", at=2e9).to_json())
    return Case(seeds, Ledger.from_json, declared=json_objects)


TARGETS = (
    Target("deltas", "msgpack", _open_delta, 0.5),
    Target("ledger", "json", _open_ledger, 0.5),
)
