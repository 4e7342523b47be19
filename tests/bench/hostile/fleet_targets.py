"""Parsers of what members tell of themselves, and of what operators have stored."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import count
from random import Random
from typing import Any

from bench.hostile.message_targets import MESSAGEPACK_FLOOR
from bench.hostile.target import Case, Target, json_objects
from swarm.fleet.advertised import load_entries, serves_entries, valid
from swarm.gossip import Gossip, GossipConfig, GossipRequest
from swarm.gossip.wire import decode as decode_gossip
from swarm.routing.desired import read_desired

_NODE_RENEWED = 2000  # messages; a node remembers some of each


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
    asked = [
        e.payload for at in range(1, 6) for e in one.tick(now + at) if isinstance(e, GossipRequest)
    ]
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


TARGETS = (
    Target("gossip", "msgpack", _open_gossip),
    Target("desired-state", "json", _open_desired),
)
