"""What a node gossips of itself, and how little of a peer's word is believed.

role      "shard-2"                        draining  bool
serves    [[model, version, stage], …]     host      memory host id, or ""
device    "cpu", "cuda" …                  memory    bytes free
priority  0 primary, 1 standby, 2 fallback
load      {"<model>/<stage>": [waiting, in hand, compute ewma, p50, p99, queue ewma, p50,
          p99]}, times in microseconds
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.gossip import PeerView
from swarm.routing import Candidate
from swarm.subjects import TOKEN

MAX_SERVES = 256
MAX_COUNT = 10**9
MAX_TIME = 3_600_000_000  # microseconds
LOAD_FIELDS = 8


def valid(key: str, value: object) -> bool:
    """Whether a peer's value is of the right kind and in range; unknown keys are carried."""
    check = _CHECKS.get(key)
    return True if check is None else check(value)


def _token(value: object) -> bool:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def _serves(value: object) -> bool:
    return (
        isinstance(value, list | tuple)  # gossip reads lists as tuples
        and len(value) <= MAX_SERVES
        and all(
            isinstance(entry, list | tuple)
            and len(entry) == 3
            and _token(entry[0])
            and _token(entry[1])
            and type(entry[2]) is int
            and 0 <= entry[2] <= 4096
            for entry in value
        )
    )


def _load(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str)
        and isinstance(numbers, list | tuple)
        and len(numbers) == LOAD_FIELDS
        and all(type(n) is int and n >= 0 for n in numbers)
        and all(n <= MAX_COUNT for n in numbers[:2])
        and all(n <= MAX_TIME for n in numbers[2:])
        for key, numbers in value.items()
    )


_CHECKS: dict[str, Any] = {
    "role": lambda v: _token(v),
    "serves": _serves,
    "load": _load,
    "draining": lambda v: type(v) is bool,
    "host": lambda v: v == "" or _token(v),
    "device": lambda v: _token(v),
    "memory": lambda v: type(v) is int and 0 <= v < 1 << 60,
    "priority": lambda v: type(v) is int and 0 <= v <= 9,
}


@dataclass(frozen=True, slots=True)
class StagePeer:
    """One node that serves a stage, as gossip tells it."""

    node: str
    priority: int
    host: str
    draining: bool


def serving(peers: Iterable[PeerView], model: str, version: str, stage: int) -> list[StagePeer]:
    """The peers that serve a stage, in no order."""
    found = []
    for peer in peers:
        if (model, version, stage) in map(tuple, _list(peer.values.get("serves"))):
            values = peer.values
            found.append(
                StagePeer(
                    peer.node,
                    _int(values.get("priority")),
                    str(values.get("host", "")),
                    values.get("draining") is True,
                )
            )
    return found


def candidates(peers: Mapping[str, PeerView], heard: float | None = None) -> list[Candidate]:
    """The primaries of the mesh as routing sees them: one candidate a node and stage."""
    at = time.monotonic() if heard is None else heard
    found = []
    for peer in peers.values():
        if peer.state in ("dead", "left") or _int(peer.values.get("priority")) != 0:
            continue
        load = peer.values.get("load")
        loads: dict[Any, Any] = load if isinstance(load, dict) else {}
        for model, version, stage in _list(peer.values.get("serves")):
            numbers = loads.get(f"{model}/{stage}", [0] * LOAD_FIELDS)
            memory = peer.values.get("memory")
            found.append(
                Candidate(
                    peer.node,
                    stage,
                    {model: frozenset([version])},
                    load=numbers[0],
                    in_flight=numbers[1],
                    compute_ewma_s=numbers[2] / 1e6,
                    compute_p50_s=numbers[3] / 1e6,
                    compute_p99_s=numbers[4] / 1e6,
                    queue_ewma_s=numbers[5] / 1e6,
                    queue_p50_s=numbers[6] / 1e6,
                    queue_p99_s=numbers[7] / 1e6,
                    memory_free_bytes=memory if isinstance(memory, int) else None,
                    device=str(peer.values.get("device", "cpu")),
                    draining=peer.values.get("draining") is True,
                    suspected=peer.state == "suspect",
                    heard=at,
                )
            )
    return found


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
