"""How long a node's stages take, kept for its successor, which begins with these times."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from nodes.connection.checkpoint import Checkpoint
from nodes.stage.server import StageServer

log = logging.getLogger("swarm.node")

SAVE_EVERY = 10.0  # seconds
LONGEST_RUN_US = 60_000_000  # a longer time in a checkpoint is not believed
KEY = "compute_p99_us"  # the checkpoint's


class KeptTimes:
    """p99 of each stage's run, in microseconds, in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        loaded = checkpoint.load().get(KEY)
        self._loaded = loaded if isinstance(loaded, dict) else {}

    def prime(self, servers: Iterable[StageServer]) -> None:
        """Let the stages start from the times of this node's predecessor."""
        for server in servers:
            p99 = self._loaded.get(_key(server))
            if isinstance(p99, int) and 0 < p99 < LONGEST_RUN_US:
                server.stats.compute.add(p99 / 1e6, time.monotonic())

    def save(self, servers: Iterable[StageServer]) -> None:
        """Keep the times of these stages."""
        now = time.monotonic()
        times = {
            _key(server): int(server.stats.compute.percentile(0.99, now) * 1e6)
            for server in servers
        }
        try:
            self._checkpoint.save({KEY: times})
        except OSError as error:
            log.warning("the checkpoint was not saved: %s", error)

    async def run(self, servers: Callable[[], Iterable[StageServer]]) -> None:
        """Save regularly, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self.save(servers())


def _key(server: StageServer) -> str:
    return f"{server.info.model}/{server.stage}"
