"""A node's life: connect, wait for its model, load, announce, serve, drain, leave.

One lifecycle for every role; a role only decides which stages are loaded and whether the
node also answers `infer.<model>` (shard-1, fallback, gateway, edge) or captures (edge).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import swarm
from nodes.life.announce import Announcer
from nodes.life.checkpoint import Checkpoint
from nodes.life.config import NodeConfig
from nodes.life.front import Front
from nodes.life.router import Router
from nodes.life.status import status_document, timestamp
from nodes.life.versions import Versions
from nodes.life.watch import Watch
from nodes.stage.server import StageServer
from swarm.errors import NotFound, SwarmError, Unavailable
from swarm.fleet.advertised import StagePeer
from swarm.fleet.membership import Membership
from swarm.gossip import Event, PeerView
from swarm.ids import node_id
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.periodic import BEAT, next_beat
from swarm.routing import BadDesiredState
from swarm.services.control import Control
from swarm.services.infer import InferService
from swarm.wire.messages import Request, Result

log = logging.getLogger("swarm.node")

STATUS_EVERY = 5 * BEAT  # seconds
STATUS_LEAST = 0.02  # seconds between two, however often it is asked for
DRAIN_TIMEOUT = 8.0  # seconds
SAVE_EVERY = 10.0  # seconds between checkpoints
# Seconds between looks at the desired state. A change is announced too: while serving, this is
# only for an announcement that was lost.
CHECK_MODEL_EVERY, CHECK_WHILE_SERVING = 1.0, 10.0


class Node:
    """`run(stop)` is its whole life; it ends when `stop` is set."""

    def __init__(self, config: NodeConfig, started: float | None = None) -> None:
        self.config = config
        self.id = config.node or node_id(config.role)
        self.state = "waiting"
        self.detail = "connecting"
        self.since = timestamp()
        self.ready_ms = 0.0
        self.extra: dict[str, Any] = {}
        self.became_ready = asyncio.Event()
        self.on_change: Callable[[dict[str, Any]], None] | None = None
        self.router = Router(self._view, self.tell)
        self.mesh = Mesh(
            config.link,
            config.mesh,
            shm=config.shm,
            known_peers=self._peers,
            picker=self.router,
        )
        self.membership = Membership(
            self.mesh.link,
            self.mesh.subjects,
            self.id,
            self._on_gossip,
            config.gossip,
            config.mesh_key,
        )
        self.mesh.socket.on_gone.append(self.membership.gone)
        self.versions = Versions(
            self.mesh,
            config,
            self.id,
            self.answers_requests,
            self.router.apply,
            self.router,
        )
        self.announcer = Announcer(
            self.mesh, config, self.membership, self.router, self.versions.all, self.tell
        )
        self.front: Front | None = None
        if self.answers_requests:
            self.front = Front(
                self.mesh, self.id, self.versions.lookup, config.budget, config.version
            )
        self._service = InferService(
            f"swarm-{config.mesh}",
            swarm.__version__,
            {"node": self.id, "role": config.role, "mesh": config.mesh, "model": config.model},
            self._service_subjects(),
            self._answer,
        )
        self.checkpoint = Checkpoint(config.state_dir, config.mesh, config.role)
        self.versions.restored = self.checkpoint.load()
        self._started = time.monotonic() if started is None else started
        self._changed = asyncio.Event()
        self._asked_status = asyncio.Event()

    @property
    def answers_requests(self) -> bool:
        """Whether any NATS client may ask this node for an inference."""
        return self.config.stage == 1 or self.config.role in ("fallback", "gateway", "edge")

    def _service_subjects(self) -> list[str]:
        subjects = self.mesh.subjects
        if not self.answers_requests:
            return []
        if self.config.role == "gateway":
            return [f"{subjects.root}.infer.*"]
        return [subjects.infer(self.config.model_name)]

    async def _answer(self, model: str, request: Request) -> Result:
        assert self.front is not None
        return await self.front.answer(model, request)

    # What is made first knows what is made later by these.

    def _peers(self, info: ModelInfo, stage: int) -> list[StagePeer]:
        return self.announcer.peers(info, stage)

    def _view(self) -> Mapping[str, PeerView]:
        return self.membership.view()

    def _on_gossip(self, event: Event) -> None:
        self.announcer.on_event(event)

    # --- life -----------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `SwarmError` or `ShardsError` when the node can never serve as configured."""
        link = self.mesh.link
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(link.run(), name="link")]

            def own(work: Coroutine[Any, Any, None], name: str) -> None:
                background.append(group.create_task(work, name=name))

            try:
                if await self._connect(stop):
                    self.mesh.follow_config(self._changed.set)
                    own(self._publish_status(), "status")
                    own(self.mesh.tend(), "tend")
                    await self._serve(stop, own)
            finally:
                await self._leave()
                await _end(background)

    async def _connect(self, stop: asyncio.Event) -> bool:
        while not stop.is_set():
            try:
                await self.mesh.link.ready(2.0)
                self.mesh.open_socket()
                return True
            except SwarmError as error:
                log.warning("waiting: %s", error)
        return False

    async def _serve(
        self, stop: asyncio.Event, own: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        """Follow the mesh's desired state until `stop`."""
        announced: set[str] = set()
        while not stop.is_set():
            self._changed.clear()
            pause = CHECK_MODEL_EVERY
            try:
                await self.versions.reconcile(self._loading)
                if not self.became_ready.is_set():
                    self._become_ready(own)
                pause = CHECK_WHILE_SERVING
            except BadDesiredState as error:
                # Refused as a whole; what is served stays as it is.
                log.warning("%s", error)
                self.tell("rejected", {"model": self.config.model_name, "detail": str(error)[:500]})
            except (NotFound, Unavailable) as error:
                if not self.became_ready.is_set():
                    self._become("waiting", str(error))
            # Also of a reconciliation that failed half-way.
            if self.became_ready.is_set() and announced != set(self.versions.serving):
                announced = set(self.versions.serving)
                self.announcer.announce()
            await self._until_changed(stop, pause)

    def _loading(self, version: str) -> None:
        if not self.became_ready.is_set():
            self._become("loading", f"{self.config.model_name}@{version}")

    def _become_ready(self, own: Callable[[Coroutine[Any, Any, None], str], None]) -> None:
        self.ready_ms = round((time.monotonic() - self._started) * 1e3, 1)
        own(Control(self.config.link, self.id, self._service.attach).run(), "control")
        own(self.announcer.run(), "announce")
        own(self.membership.run(), "gossip")
        watch = Watch(
            self._servers, self.versions.reload, self.tell, lambda why: self._become("failed", why)
        )
        own(watch.run(), "watchdog")
        own(self._save_regularly(), "checkpoint")
        self._become("ready", "serving")
        self.tell("joined", {})
        self.became_ready.set()

    async def _until_changed(self, stop: asyncio.Event, pause: float) -> None:
        waiters = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._changed.wait())]
        try:
            await asyncio.wait(
                [*waiters, *self.versions.tasks],
                timeout=pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _leave(self) -> None:
        """Drain and say goodbye; bounded in time."""
        was_ready = self.became_ready.is_set()
        if was_ready:
            self._become("draining", "finishing what runs")
            self.announcer.announce(draining=True)
            self._save()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await self._service.stop()
                await self.versions.drain()
        except (TimeoutError, ExceptionGroup) as error:
            log.warning("left without draining: %r", error)
        if was_ready:
            self.membership.leave()
        if self.front is not None:
            self.front.close()
        self._become("left", "stopped")
        if was_ready:
            self.tell("left", {})
        with contextlib.suppress(SwarmError):
            await self.mesh.close()

    # --- status -----------------------------------------------------------------------

    def _become(self, state: str, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        if state != self.state:
            self.since = timestamp()
        self.state, self.detail = state, detail
        log.info("%s: %s", state, detail)
        self._publish(self.mesh.subjects.status(self.id), self.document())
        if self.on_change is not None:
            self.on_change({"event": state, "node": self.id, "detail": detail})

    def _servers(self) -> list[StageServer]:
        return [server for serving in self.versions.all() for server in serving.servers]

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self._save()

    def _save(self) -> None:
        """What a successor should know: the versions adopted, and how long stages take."""
        now = time.monotonic()
        state = {
            "versions": list(self.versions.serving),
            "compute_p99_us": {
                f"{server.info.model}/{server.stage}": int(
                    server.stats.compute.percentile(0.99, now) * 1e6
                )
                for server in self._servers()
            },
        }
        try:
            self.checkpoint.save(state)
        except OSError as error:
            log.warning("the checkpoint was not saved: %s", error)

    def document(self) -> dict[str, Any]:
        """The status document as of now."""
        servings = self.versions.all()
        extra = {
            "host_id": self.mesh.lender.host,
            "inbox": self.mesh.inbox,
            "priority": self.config.priority,
            "gossip": self._gossip_document(),
        } | self.extra
        if self.ready_ms:
            extra["ready_ms"] = self.ready_ms
        return status_document(
            self.config,
            self.id,
            self.state,
            self.since,
            self.detail,
            servings[-1].info if servings else None,
            self._servers(),
            extra,
        )

    def _gossip_document(self) -> dict[str, Any]:
        states = [peer.state for peer in self.membership.view().values()]
        return {
            "peers": {state: states.count(state) for state in ("alive", "suspect", "dead", "left")},
            "refused": dict(self.membership.gossip.counters),
        }

    def tell(self, kind: str, detail: dict[str, Any]) -> None:
        """Publish an event for dashboards."""
        doc = {"v": 1, "kind": kind, "node": self.id, "role": self.config.role, "at": timestamp()}
        self._publish(self.mesh.subjects.event(kind), doc | detail)

    def _publish(self, subject: str, doc: dict[str, Any]) -> None:
        try:
            self.mesh.link.publish(subject, json.dumps(doc).encode())
        except SwarmError as error:
            log.debug("not published: %s", error)

    async def _publish_status(self) -> None:
        self.mesh.link.subscribe(
            self.mesh.subjects.status_request, lambda _: self._asked_status.set()
        )
        while True:
            self._asked_status.clear()
            self._publish(self.mesh.subjects.status(self.id), self.document())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_beat(STATUS_EVERY)):
                    await self._asked_status.wait()
                    await asyncio.sleep(STATUS_LEAST)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel, again where it was swallowed: in Python 3.11 a `wait_for` that is cancelled just
    when it is done returns as if nothing had happened, and nats-py waits so."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
