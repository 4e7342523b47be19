"""A node's life: connect, wait for its model, load it, announce itself, serve, drain, leave.

Every role lives alike. A role decides which stages are loaded, whether the node also answers
`infer.<model>` (shard-1, fallback, gateway, edge), and whether it captures (edge).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from nodes.config import NodeConfig
from nodes.connection.checkpoint import Checkpoint
from nodes.connection.connection import Connection
from nodes.duties.duties import Duties
from nodes.features import first
from nodes.life.condition import NodeCondition
from nodes.life.draining import drain_when_told
from nodes.life.own_entry import OwnEntry
from nodes.life.reconciler import Reconciler
from nodes.life.status import StatusPublisher
from nodes.life.watchdog import NodeWatchdog
from nodes.requests.objectives import DesiredObjectives, Objectives
from nodes.requests.service import RequestService
from nodes.versions.kept_times import KeptTimes
from nodes.versions.versions import Versions
from swarm.tasks import end_all
from swarm.transport.process_links import Own

log = logging.getLogger("swarm.node")

DRAIN_TIMEOUT = 8.0  # seconds


class Node:
    """`run(stop)` is its whole life; it ends when `stop` is set.

    started: `time.monotonic()` of the process's start. on_change(document) is called at each
    change of state. more_status: fields that a role adds to the status documents. end(): ends all
    that stands around this node too, which an operator may ask for; without it, `run` ends.
    became_ready: is set once the node serves. audit: None where nothing is recorded. Raises
    `InvalidArgument` as `Connection` does.
    """

    def __init__(
        self,
        config: NodeConfig,
        started: float | None = None,
        on_change: Callable[[dict[str, Any]], None] = lambda document: None,
        more_status: Callable[[], dict[str, Any]] = dict,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self._end = end
        # Who it is, and what it hears and tells.
        self._connection = connection = Connection(config)
        self.id, self.mesh = connection.id, connection.mesh
        desired = DesiredObjectives(self.mesh.catalog)
        objectives = Objectives(desired, connection.events.tell, connection.burns)
        self.audit = first(lambda feature: feature.audit(connection))
        # What it serves.
        self._times = KeptTimes(Checkpoint(config.state_dir, config.mesh, config.role))
        self._versions = Versions(
            connection, (connection.route, desired.read), self._times, self.audit
        )
        self.weights = self._versions.loader.weights
        self._requests = RequestService(connection, self._versions, objectives, self.audit)
        self.answerer = self._requests.answerer
        # What it is to others, and does for them.
        self._entry = OwnEntry(
            connection,
            self._versions.pulling,
            refers=self.audit is None,  # what is on record can be asked for anew
        )
        self._duties = Duties(self._requests.around, self._entry.take)
        condition = NodeCondition(connection.mesh.link, self._devices)
        more = [more_status, self._duties.status, self._requests.status, condition.status]
        if self.audit is not None:
            more.append(self.audit.status)
        self._status = StatusPublisher(connection, self._versions.pulling, more, started, on_change)
        self._watchdog = NodeWatchdog(
            self._versions.servers,
            self._versions.loader.reload,
            connection.events.tell,
            partial(self._status.become, "failed"),
            more_on_loop=[self.answerer.on_loop],
        )
        self._reconciler = Reconciler(
            connection,
            self._versions,
            self._status,
            self._duties.desired_state_was_read,
            self._entry.announce,
            lambda: self._duties.flaws,
        )
        self._duties.follow_flaws(self._reconciler.look_again)
        if self._versions.places is not None:
            self._versions.places.on_change = self._reconciler.look_again
        self.became_ready = self._reconciler.became_ready

    def _devices(self) -> set[str]:
        return {device for serving in self._versions.all() for device in serving.devices}

    def status(self) -> dict[str, Any]:
        """The status document as of now."""
        return self._status.document()

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `SwarmError` or `ShardsError` when the node can never serve as configured."""
        async with asyncio.TaskGroup() as group:
            background: list[asyncio.Task[None]] = []

            def own(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
                background.append(group.create_task(work, name=name))
                return background[-1]

            try:
                if await self._connection.connect(stop, own):
                    self._begin(stop, own)
                    await self._reconciler.run(stop, partial(self._serve, own))
            finally:
                await self._leave()
                await end_all(background)

    def _begin(self, stop: asyncio.Event, own: Own) -> None:
        """Connected, serving nothing yet."""
        own(self._status.run(), "status")
        self._connection.keep(own)
        drain_when_told(self._connection, self._end or stop.set)
        if self.audit is not None:
            own(self.audit.run(), "audit")

    def _serve(self, own: Own) -> None:
        """Every lane of this node pulls: join the mesh, and tell everybody."""
        self._requests.start(own)
        own(self._entry.run(), "own entry")
        own(self._connection.membership.run(), "gossip")
        self._duties.start(own)
        own(self._watchdog.run(), "watchdog")
        own(self._times.run(self._versions.servers), "checkpoint")

    async def _leave(self) -> None:
        """Drain, say goodbye, and free all that the node holds, whatever fails on the way."""
        try:
            await self._drain(self.became_ready.is_set())
        finally:
            await self._connection.close()

    async def _drain(self, was_ready: bool) -> None:
        """Finish what runs, within `DRAIN_TIMEOUT`, and tell that this node leaves."""
        if was_ready:
            self._status.become("draining", "finishing what runs")
            self._entry.announce(draining=True)
            self._times.save(self._versions.servers())
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await self._requests.stop()
                await self._versions.drain()
        except (TimeoutError, ExceptionGroup) as error:
            log.warning("left without draining: %r", error)
        if self.audit is not None and self.mesh.link.connected:
            await self.audit.close()
        if was_ready:
            self._connection.membership.leave()
        self._requests.close()
        self._status.become("left", "stopped")
        if was_ready:
            self._connection.events.tell("left", {})
