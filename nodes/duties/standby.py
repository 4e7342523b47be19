"""A node of the warm pool: it takes the stage that lacks nodes, and gives it back.

Until then it stands behind the primaries at every stage that it holds, before the fallbacks. Once
it has taken a stage it is a primary there, and stands behind the fallbacks everywhere else. The
decision is `swarm.fleet.warm_pool`; every standby computes it alike.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from nodes.connection.connection import Connection
from nodes.duties.wanting import Wanting
from nodes.versions.serving import Serving, by_stage
from swarm.fleet.advertised import Where, of_load
from swarm.fleet.priorities import PRIMARY, RESERVE, STANDBY
from swarm.fleet.warm_pool import Lacking, assign, standbys_of
from swarm.gossip import Event
from swarm.periodic import BEAT, next_beat

log = logging.getLogger("swarm.node")

DECIDE_EVERY = 3 * BEAT  # seconds


class Standby:
    """`run()` decides until cancelled; `on_event` takes the gossip's news.

    wanting: how the stages are, and how many nodes each should have. take(stage): gossips that this
    node has taken a stage, None for none.
    """

    def __init__(
        self,
        connection: Connection,
        servings: Callable[[], list[Serving]],
        wanting: Wanting,
        take: Callable[[Where | None], None],
    ) -> None:
        self._peers = connection.peers
        self._tell = connection.events.tell
        self._servings = servings
        self._wanting = wanting
        self._take = take
        self._taken: Where | None = None
        self._lacking = Lacking()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Look at the mesh regularly, and at once where a node came, went or changed its stages."""
        while True:
            self._news.clear()
            self._decide(time.monotonic())
            try:
                async with asyncio.timeout_at(next_beat(DECIDE_EVERY)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def on_event(self, event: Event) -> None:
        """A change in the mesh."""
        if event.kind != "updated" or not all(map(of_load, event.detail.split(","))):
            self._news.set()

    def _decide(self, now: float) -> None:
        """Take the stage that is this node's to take, or give it back. now: `time.monotonic()`."""
        servers = by_stage(self._servings())
        peers, me = self._peers.alive(), self._peers.node
        if any(peer.node == me and peer.values.get("draining") is True for peer in peers):
            return  # this node leaves the mesh, and has said so
        lacking = self._lacking.observe(*self._wanting.look(now), now)
        wanted = assign(lacking, standbys_of(peers)).get(me)
        if wanted not in servers:
            wanted = None
        before, self._taken = self._taken, wanted
        for where, server in servers.items():
            elsewhere = STANDBY if wanted is None else RESERVE
            server.source.set_priority(PRIMARY if where == wanted else elsewhere)
        if wanted == before:
            return
        self._take(wanted)
        if before is not None:
            log.info("gives back stage %d of %s@%s", before[2], *before[:2])
            self._tell("gave-back", _detail(before))
        if wanted is not None:
            log.info("takes stage %d of %s@%s", wanted[2], *wanted[:2])
            self._tell("took-over", _detail(wanted))


def _detail(where: Where) -> dict[str, Any]:
    model, version, stage = where
    return {"model": model, "version": version, "stage": stage}
