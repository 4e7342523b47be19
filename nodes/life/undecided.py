"""A node that was told no model: it lives, and waits, until its mesh serves one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.life.draining import drain_when_told
from nodes.life.status import StatusPublisher
from nodes.versions.sole_model import sole_model
from swarm.errors import ApiError, NotFound, Unavailable
from swarm.tasks import end_all

log = logging.getLogger("swarm.node")

LOOK_EVERY = 10.0  # seconds; each change of what serves is announced too


class Undecided:
    """`decided(stop)` finds the model. Meanwhile the node is seen as one that waits.

    started, on_change: as of `Node`. The node that follows has the same id, in a new connection.
    """

    def __init__(
        self,
        config: NodeConfig,
        started: float | None = None,
        on_change: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> None:
        self._connection = connection = Connection(config)
        self.config = replace(config, node=connection.id)
        self.mesh = connection.mesh
        self._status = StatusPublisher(connection, list, [], started, on_change)
        self._changed = asyncio.Event()

    def status(self) -> dict[str, Any]:
        """The status document as of now."""
        return self._status.document()

    async def decided(self, stop: asyncio.Event) -> NodeConfig | None:
        """The settings with the mesh's one serving model; None when `stop` came first. Raises
        `InvalidArgument` where the mesh serves several, and what a node's connection raises."""
        async with asyncio.TaskGroup() as group:
            background: list[asyncio.Task[None]] = []

            def own(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
                background.append(group.create_task(work, name=name))
                return background[-1]

            try:
                if not await self._connection.connect(stop, own):
                    return None
                own(self._status.run(), "status")
                self._connection.keep(own)
                drain_when_told(self._connection, stop.set)
                self.mesh.follow_config(self._changed.set)
                return await self._one_model(stop)
            finally:
                await self._connection.close()
                await end_all(background)

    async def _one_model(self, stop: asyncio.Event) -> NodeConfig | None:
        line = f"swarm-node --role {self.config.role} --model {{model}}"
        while not stop.is_set():
            self._changed.clear()
            try:
                model = sole_model(await self.mesh.registry.serving_models(), line)
                log.info("the mesh serves %s, which this node takes", model)
                return replace(self.config, model=model)
            except (NotFound, Unavailable, ApiError) as error:
                self._status.become("waiting", str(error))
            await self._until_due(stop)
        return None

    async def _until_due(self, stop: asyncio.Event) -> None:
        waiters = [asyncio.create_task(each.wait()) for each in (stop, self._changed)]
        try:
            await asyncio.wait(waiters, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
