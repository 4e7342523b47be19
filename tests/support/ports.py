"""Ports for servers that a test or a benchmark starts: of the standard library alone, because the
processes of contenders have nothing else."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A TCP port that is free on the loopback address now, below those that the system gives to
    connections: one of them could take it before its server does."""
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 20000 to 32000 is free")
