"""Status documents and events for tests: as nodes say them."""

from __future__ import annotations

import json
from typing import Any

from swarm.subjects import Subjects


def a_stage(stage: int = 1, **fields: Any) -> dict[str, Any]:
    latency = {"p50": 1.0, "p99": 2.5, "ewma": 1.2}
    return {
        "stage": stage,
        "model": "digits",
        "version": "1",
        "weights": 0,
        "in_hand": 1,
        "waiting": 2,
        "counters": {"served": 7, "failed": 1, "refused": 0},
        "queue_ms": latency,
        "compute_ms": latency,
        "queue_s": {"counts": [0] * 15 + [1], "sum": 12.0},
        "compute_s": {"counts": [1] + [0] * 15, "sum": 0.0001},
        "batch_sizes": [7] + [0] * 7,
        **fields,
    }


def a_status(
    node: str = "shard-1-a", serves: tuple[int, ...] = (1,), **fields: Any
) -> dict[str, Any]:
    """Of a healthy node that serves these stages."""
    is_shard = len(serves) == 1
    return {
        "v": 1,
        "node": node,
        "role": f"shard-{serves[0]}" if is_shard else "fallback",
        "mesh": "default",
        "host": "pi-1",
        "pid": 4711,
        "state": "ready",
        "detail": "serving",
        "since": "2026-01-01T00:00:00.000Z",
        "at": "2026-01-01T00:00:01.000Z",
        "software": "0.1.0",
        "model": "digits",
        "version": "1",
        "stages": [a_stage(stage) for stage in serves],
        "queue_depth": 2,
        "rss_bytes": 123_000_000,
        "cpu_seconds": 1.5,
        "uptime_s": 60.0,
        "priority": 0 if is_shard else 2,
        "gossip": {"peers": {"alive": 3, "suspect": 0, "dead": 0, "left": 0}, "refused": {}},
        **fields,
    }


def message(node: str = "shard-1-a", **fields: Any) -> tuple[str, bytes]:
    """A status as it comes: its subject, its bytes."""
    return Subjects("m").status(node), json.dumps(a_status(node, **fields)).encode()


def event(kind: str, node: str = "shard-1-a", **fields: Any) -> tuple[str, bytes]:
    """An event as it comes: its subject, its bytes."""
    doc = {"v": 1, "kind": kind, "node": node, "role": "shard-1", "at": "2026-01-01T00:00:02.000Z"}
    return f"swarm.m.events.{kind}", json.dumps(doc | fields).encode()
