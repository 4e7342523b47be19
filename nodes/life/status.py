"""A node's status document: what dashboards consume, each second and at each change.

`swarm/schemas/status.schema.json` is its contract.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

import swarm
from nodes.life.config import NodeConfig
from nodes.stage.server import StageServer
from swarm.model import ModelInfo

STATES = ("waiting", "loading", "ready", "draining", "left", "failed")


def timestamp() -> str:
    """Now, RFC 3339 with milliseconds, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rss_bytes() -> int:
    """Resident memory of this process; 0 where /proc is absent."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def status_document(
    config: NodeConfig,
    node: str,
    state: str,
    since: str,
    detail: str,
    info: ModelInfo | None,
    servers: list[StageServer],
    extra: dict[str, Any],
) -> dict[str, Any]:
    """All times in milliseconds, memory in bytes; counters count since the node's start."""
    now = time.monotonic()
    stages = [
        {
            "stage": server.stage,
            "version": server.info.version,
            "in_hand": server.queued,
            "waiting": server.waiting,
            "counters": server.stats.counters.as_doc(),
            **server.stats.as_doc(now),
        }
        for server in servers
    ]
    return {
        "v": 1,
        "node": node,
        "role": config.role,
        "mesh": config.mesh,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "state": state,
        "detail": detail,
        "since": since,
        "at": timestamp(),
        "software": swarm.__version__,
        "model": info.model if info else config.model_name,
        "version": info.version if info else config.version,
        "stages": stages,
        "queue_depth": sum(server.waiting for server in servers),
        "rss_bytes": rss_bytes(),
        **extra,
    }
