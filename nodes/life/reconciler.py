"""Keeps what a node serves in agreement with desired state, and says how far it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf

from nodes.connection.connection import Connection
from nodes.connection.events import REASON_LIMIT
from nodes.life.status import StatusPublisher
from nodes.versions.serving import Serving, places
from nodes.versions.versions import LanesWait, Versions
from shards.errors import ShardsError
from swarm.errors import ApiError, BadKey, BadSeal, NotFound, SwarmError, Unavailable, Untrusted
from swarm.fleet.advertised import Where
from swarm.routing import BadDesiredState

log = logging.getLogger("swarm.node")

SERVING = "serving"  # the detail of a node that serves all that it is told to


# Seconds from one reconciliation to the next, while the node cannot serve all of desired state, and
# while it does. Each change is announced too: a node that serves reads it only for an announcement
# that was lost.
WHILE_WAITING, WHILE_SERVING = 1.0, 10.0


class Reconciler:
    """`run` loads and serves the versions that the mesh desires, until its `stop`.

    on_read() is called when desired state was read, on_served() when other versions are served.
    flaws(): what is wrong at the server with what the node needs, in words.
    became_ready: is set once every lane of the first version pulls.
    """

    def __init__(
        self,
        connection: Connection,
        versions: Versions,
        status: StatusPublisher,
        on_read: Callable[[], None],
        on_served: Callable[[], None],
        flaws: Callable[[], str] = lambda: "",
    ) -> None:
        self._flaws = flaws
        self.became_ready = asyncio.Event()
        self._mesh = connection.mesh
        self._model = connection.config.model_name
        self._tell = connection.events.tell
        self._versions = versions
        self._status = status
        self._on_read = on_read
        self._on_served = on_served
        self._changed = asyncio.Event()  # desired state
        self._look = asyncio.Event()
        self._rejected = ""  # why desired state is refused at present

    async def run(self, stop: asyncio.Event, start: Callable[[], None]) -> None:
        """start(): the node serves for the first time, and begins all that it does then. Raises
        `SwarmError` or `ShardsError` when the node can never serve as configured."""
        self._mesh.follow_config(self._changed.set)
        announced: tuple[list[Serving], set[Where]] = [], set()
        read_at = -inf
        while not stop.is_set():
            now = time.monotonic()
            read = self._changed.is_set() or now - read_at >= WHILE_SERVING
            self._changed.clear()
            self._look.clear()
            pause, read_at = WHILE_WAITING, -inf if read else read_at
            try:
                await self._versions.reconcile(self._loading, read=read)
                self._become_ready(start)
                read_at = now if read else read_at
                pause = self._versions.due_after or WHILE_SERVING
                self._on_read()
                self._serves_but(self._versions.refused)
            except (BadDesiredState, Untrusted, BadKey, BadSeal) as error:
                # Refused as a whole: the node serves the versions that it served before.
                self._reject(str(error))
                if not self.became_ready.is_set():
                    self._status.become("waiting", str(error))
            except LanesWait as error:
                if self._versions.pulling():
                    self._become_ready(start)
                self._serves_but(self._versions.refused, str(error))
            except (NotFound, Unavailable, ApiError) as error:
                # ApiError: a server whose store is gone or full refuses what it cannot read.
                if not self.became_ready.is_set():
                    self._status.become("waiting", str(error))
                elif isinstance(error, NotFound):  # what an operator has to push, or to take back
                    self._serves_but(self._versions.refused, str(error))
            except (SwarmError, ShardsError) as error:
                if not self.became_ready.is_set():
                    raise
                self._reject(str(error))
            # A reconciliation that failed half-way may have changed the served versions too.
            pulling = self._versions.pulling()
            if self.became_ready.is_set() and announced != (pulling, places(pulling)):
                announced = pulling, places(pulling)
                self._on_served()
            await self._until_due(stop, pause)

    def look_again(self) -> None:
        """Something beside desired state has changed."""
        self._look.set()

    def _become_ready(self, start: Callable[[], None]) -> None:
        if self.became_ready.is_set():
            return
        start()
        self._status.become("ready", SERVING)
        self._tell("joined", {})
        self.became_ready.set()

    def _loading(self, version: str) -> None:
        if not self.became_ready.is_set():
            self._status.become("loading", f"{self._model}@{version}")

    def _serves_but(self, refused: str, waits: str = "") -> None:
        """Say which desired versions are not served: those that cannot run here, and those that the
        node waits for. "" where there are none."""
        if refused:
            self._reject(refused)
        else:
            self._rejected = ""
        said = (refused[:REASON_LIMIT], waits, self._flaws()[:REASON_LIMIT])
        why = "; ".join(text for text in said if text)
        if not self.became_ready.is_set():
            self._status.become("waiting", why)
        elif self._status.state == "ready":
            self._status.explain(f"{SERVING}; {why}" if why else SERVING)

    def _reject(self, reason: str) -> None:
        """Say why the desired state is refused; once, while the reason stays."""
        if reason == self._rejected:
            return
        self._rejected = reason
        if self.became_ready.is_set():  # otherwise the change of state tells it
            log.warning("%s", reason)
        self._tell("rejected", {"model": self._model, "detail": reason[:REASON_LIMIT]})

    async def _until_due(self, stop: asyncio.Event, pause: float) -> None:
        """Until desired state changes, `stop`, the end of a version's task, or `pause` seconds
        later."""
        waiters = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._look.wait()),
        ]
        try:
            await asyncio.wait(
                [*waiters, *self._versions.tasks],
                timeout=pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for waiter in waiters:
                waiter.cancel()
