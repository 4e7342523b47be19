"""What a node does for the mesh beside its own requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nodes.connection.events import REASON_LIMIT, Tell
from nodes.duties.lane_moves import LaneMoves
from nodes.duties.standby import Standby
from nodes.duties.takeover import Takeover
from nodes.duties.upkeep import Upkeep
from nodes.duties.wanting import Wanting
from nodes.feature import Surroundings
from nodes.features import features
from swarm.fleet.advertised import Where
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.transport.process_links import Own

log = logging.getLogger("swarm.node")

BEGIN_AGAIN_AFTER = 1.0  # seconds


class Duties:
    """`start` once the node serves. take(stage): gossips that this node, a standby, has taken a
    stage, None for none."""

    def __init__(self, around: Surroundings, take: Callable[[Where | None], None]) -> None:
        connection, versions = around.connection, around.versions
        config, events = connection.config, connection.membership.on_event
        self._tell = connection.events.tell
        takeover = Takeover(connection, versions.all)
        events.append(takeover.on_event)
        self._wanting = Wanting(connection, versions.all)
        self._upkeep = Upkeep(connection, versions.all)
        connection.mesh.routes.flaw = self._upkeep.flaw_of
        self._parts: dict[str, Callable[[], Awaitable[None]]] = {
            "takeover": takeover.run,
            "lane moves": LaneMoves(connection, versions.all).run,
            "upkeep": self._upkeep.run,
        }
        if versions.places is None:  # else the places of a plan want nodes
            self._parts["wanted nodes"] = self._wanting.run
        if config.role == WARM:
            standby = Standby(connection, versions.all, self._wanting, take)
            events.append(standby.on_event)
            self._parts["standby"] = standby.run
        self._of_features = [part for each in features() for part in each.parts(around)]
        for part in self._of_features:
            events.append(part.on_event)
            self._parts[part.name] = part.run
        versions.loader.parts += self._of_features

    def start(self, own: Own) -> None:
        """Do all of it from now on."""
        for part, run in self._parts.items():
            own(go_on(part, run, self._tell), part)

    @property
    def flaws(self) -> str:
        """What this node knows to be wrong at the server, in words; "" for nothing."""
        return "; ".join(flaw.line for flaw in self._upkeep.flaws)

    def follow_flaws(self, on_change: Callable[[], None]) -> None:
        """on_change(): `flaws` says something else from now on."""
        self._upkeep.on_change = on_change

    def desired_state_was_read(self) -> None:
        """A rollout may have begun."""
        for part in self._of_features:
            part.desired_state_was_read()

    def status(self) -> dict[str, Any]:
        """Fields of a status document."""
        document = self._wanting.status() | self._upkeep.status()
        for part in self._of_features:
            document |= part.status()
        return document


async def go_on(part: str, run: Callable[[], Awaitable[None]], tell: Tell) -> None:
    """Await `run()`, and begin it again after an error, until cancelled or until it returns.

    Otherwise a defect that foreign data triggers would end a node that serves well, and its
    successor too. tell(kind, detail): publishes the event `rejected`, once while the error stays
    the same; the status document counts it.
    """
    reported = ""
    while True:
        try:
            await run()
            return
        except Exception as error:
            log.exception("%s met a defect, and begins again", part)
            reason = f"{part} met a defect, and begins again: {error!r}"[:REASON_LIMIT]
            if reason != reported:
                reported = reason
                tell("rejected", {"detail": reason})
        await asyncio.sleep(BEGIN_AGAIN_AFTER)
