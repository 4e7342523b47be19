"""Parsers of what members tell of themselves, and of what learners and operators have stored."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import count
from random import Random
from typing import Any

import numpy as np

from bench.hostile.message_targets import MESSAGEPACK_FLOOR
from bench.hostile.target import Case, Target, json_objects
from swarm.fleet.advertised import load_entries, serves_entries, valid
from swarm.gossip import Gossip, GossipConfig, Request
from swarm.gossip.wire import decode as decode_gossip
from swarm.learning.consensus import wire
from swarm.learning.consensus.layout import Layout
from swarm.learning.record import Ledger
from swarm.routing.desired import read_desired
from swarm.security.identity import Identity
from swarm.security.signing import sign
from swarm.wire.maps import pack, unpack_map

_NODE_RENEWED = 2000  # messages; a node remembers some of each
_LAYOUT = Layout({"weight": (6, 4), "bias": (4,)})
_SCOPE = wire.Scope("default", "digits", "1", b"\x01" * 32, 0)


def _open_gossip(stack: ExitStack) -> Case:
    now, limit = 100.0, GossipConfig().refuse_bytes

    def node(name: str) -> Gossip:
        made = Gossip(name, 1, Random(name), validator=valid)
        stages = [("digits", "1", 1), ("digits", "1", 2)]
        loads = load_entries({where: [3, 1, 500, 400, 900, 10, 9, 80] for where in stages})
        for key, value in (serves_entries(stages) | loads | {"role": "shard-1"}).items():
            made.set(key, value, now)
        return made

    one, other = node("node-a"), node("node-b")
    one.add_peer("node-b")
    asked = [e.payload for at in range(1, 6) for e in one.tick(now + at) if isinstance(e, Request)]
    answers = [other.on_request(payload, now)[0] for payload in asked]
    target, moments = node("node-c"), count()

    def read(data: bytes) -> None:
        nonlocal target
        moment = next(moments)
        if moment % _NODE_RENEWED == 0:
            target = node("node-c")
        decode_gossip(data, None, limit)
        target.on_request(data, now + moment / 1000)

    seeds = (*asked, *(answer for answer in answers if answer))
    return Case(seeds, read, floor=MESSAGEPACK_FLOOR)


def _open_desired(stack: ExitStack) -> Case:
    docs: list[dict[str, Any]] = [
        {"serve": [{"version": "1", "share": 100}], "sticky": "agent", "previous": ""},
        {
            "serve": [{"version": "1", "share": 90}, {"version": "2", "share": 10}],
            "policy": "power-of-two",
            "policy_options": {},
            "memory_bytes": 0,
            "device": "cpu",
        },
        {
            "serve": [{"version": "1", "share": 100}],
            "policy": "token-bucket",
            "policy_options": {"target": 2.0, "burst": 4.0},
        },
        {
            "serve": [{"version": "1", "share": 100}],
            "policy": "nobody-knows",
            "pins": {"camera-7": "1"},
        },
    ]
    return Case(
        tuple(json.dumps(doc).encode() for doc in docs),
        lambda data: read_desired("digits", data),
        declared=json_objects,
    )


def _open_delta(stack: ExitStack) -> Case:
    identity = Identity(b"\x07" * 32)
    vector = np.linspace(-1, 1, _LAYOUT.size).astype(np.float32)
    tensors = wire.whole(_LAYOUT, vector)

    def body(kind: str, tensors: Any, nonce: bytes = b"") -> bytes:
        message = wire.Message("", kind, _SCOPE, "node-a", 1, 3, 0.5, nonce, tensors)
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
    Target("gossip", "msgpack", _open_gossip),
    Target("desired-state", "json", _open_desired),
    Target("deltas", "msgpack", _open_delta, 0.5),
    Target("ledger", "json", _open_ledger, 0.5),
)
