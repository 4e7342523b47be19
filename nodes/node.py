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
from collections.abc import Callable
from typing import Any

import swarm
from nodes.config import NodeConfig
from nodes.front import Front
from nodes.serving import Loaded, Serving, load
from nodes.status import status_document, timestamp
from shards.errors import ShardsError
from swarm.clock import ServerClock
from swarm.control import Control
from swarm.errors import (
    NotFound,
    SwarmError,
    Unavailable,
)
from swarm.ids import node_id
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.service import InferService

log = logging.getLogger("swarm.node")

STATUS_EVERY = 1.0  # seconds
DRAIN_TIMEOUT = 8.0  # seconds
CHECK_MODEL_EVERY = 1.0  # seconds; a change is also announced, this is for a lost announcement


class Node:
    """`run(stop)` is its whole life; it ends when `stop` is set."""

    def __init__(self, config: NodeConfig, started: float | None = None) -> None:
        self.config = config
        self.id = config.node or node_id(config.role)
        self.state = "waiting"
        self.detail = "connecting"
        self.since = timestamp()
        self.mesh = Mesh(config.link, config.mesh)
        self.clock = ServerClock()
        self.serving: dict[str, Serving] = {}  # by version
        self.ready_ms = 0.0
        self.extra: dict[str, Any] = {}
        self._started = time.monotonic() if started is None else started
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._gateway: dict[tuple[str, str], Loaded] = {}
        self._changed = asyncio.Event()
        self.became_ready = asyncio.Event()
        self.front: Front | None = None
        self.on_change: Callable[[dict[str, Any]], None] | None = None
        self._service: InferService | None = None

    @property
    def answers_requests(self) -> bool:
        return self.config.stage == 1 or self.config.role in ("fallback", "gateway", "edge")

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `SwarmError` or `ShardsError` when the node can never serve as configured."""
        link = self.mesh.link
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(link.run(), name="link")]
            try:
                await self._until(stop, self._connect())
                if not stop.is_set():
                    background += await self._start(group)
                    await self._reconcile_until(stop)
            finally:
                await self._leave()
                for task in background:
                    task.cancel()

    async def _until(self, stop: asyncio.Event, work: Any) -> None:
        """Run `work` until it is done or `stop` is set."""
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(stop.wait())
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        elif not task.cancelled():
            task.result()

    async def _connect(self) -> None:
        while True:
            try:
                await self.mesh.link.ready(5.0)
                return
            except SwarmError as error:
                log.warning("waiting: %s", error)

    async def _start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        mesh, config = self.mesh, self.config
        subjects: list[str] = []
        if self.answers_requests:
            self.front = Front(mesh, self.id, self._lookup, config.budget)
            root = f"{mesh.subjects.root}.infer"
            subjects = [
                f"{root}.*" if config.role == "gateway" else mesh.subjects.infer(config.model_name)
            ]
        self._service = InferService(
            f"swarm-{config.mesh}",
            swarm.__version__,
            {"node": self.id, "role": config.role, "mesh": config.mesh, "model": config.model},
            subjects,
            self._answer,
        )
        mesh.link.subscribe(f"{mesh.subjects.root}.config.>", lambda _: self._changed.set())
        mesh.link.on_up.append(self._changed.set)
        return [
            group.create_task(self._publish_status(), name="status"),
            group.create_task(mesh.tend(), name="tend"),
        ]

    async def _answer(self, model: str, request: Any) -> Any:
        assert self.front is not None
        return await self.front.answer(model, request)

    async def _open_service(self, tasks: list[asyncio.Task[None]]) -> None:
        """Answer requests, and show up in `nats service ls`, from now on."""
        assert self._service is not None
        control = Control(self.config.link, self.id, self._service.attach)
        tasks.append(asyncio.create_task(control.run(), name="control"))

    # --- models -----------------------------------------------------------------------

    async def _reconcile_until(self, stop: asyncio.Event) -> None:
        """Follow the mesh's desired state until `stop`."""
        control: list[asyncio.Task[None]] = []
        try:
            while not stop.is_set():
                self._changed.clear()
                try:
                    await self._reconcile()
                    if not self.became_ready.is_set():
                        self.ready_ms = round((time.monotonic() - self._started) * 1e3, 1)
                        await self._open_service(control)
                        self._become("ready", "serving")
                        self._event("joined", {})
                        self.became_ready.set()
                except (NotFound, Unavailable) as error:
                    if not self.became_ready.is_set():
                        self._become("waiting", str(error))
                self._raise_failures()
                await self._sleep_or_stop(stop)
        finally:
            if self._service is not None and control:
                await self._service.stop()
            for task in control:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _sleep_or_stop(self, stop: asyncio.Event) -> None:
        waiters = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._changed.wait())]
        await asyncio.wait(
            [*waiters, *self._runs.values()],
            timeout=CHECK_MODEL_EVERY,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for waiter in waiters:
            waiter.cancel()

    def _raise_failures(self) -> None:
        for version, task in list(self._runs.items()):
            if task.done():
                del self._runs[version], self.serving[version]
                task.result()

    async def _reconcile(self) -> None:
        """Serve what should be served: load what is missing, then drain what is over."""
        if self.config.role == "gateway":
            return
        wanted = await self._wanted()
        for version in wanted:
            if version not in self.serving:
                await self._serve(version)
        for version in [v for v in self.serving if v not in wanted]:
            log.info("version %s serves no more", version)
            serving = self.serving.pop(version)
            await serving.drain()
            await self._runs.pop(version)

    async def _wanted(self) -> list[str]:
        name, pinned = self.config.model_name, self.config.version
        if pinned:
            await self.mesh.registry.manifest(name, pinned)
            return [pinned]
        desired = await self.mesh.registry.desired(name)
        if desired is None:
            raise NotFound(
                f"model {name!r} is not in mesh {self.config.mesh!r} yet: "
                "push it (`swarm model push DIR`) and this node goes on by itself"
            )
        return [str(entry["version"]) for entry in desired["serve"]]

    async def _serve(self, version: str) -> None:
        if not self.became_ready.is_set():
            self._become("loading", f"{self.config.model_name}@{version}")
        info = await self.mesh.registry.info(self.config.model_name, version)
        loaded = await load(
            self.mesh,
            self.config,
            info,
            edge=self.answers_requests,
            lighter=self.config.role == "edge",
        )
        serving = Serving(self.mesh, self.config, loaded, self.id, self.clock)
        self._runs[version] = asyncio.create_task(serving.run(), name=f"serve {version}")
        self.serving[version] = serving
        await serving.ready()
        log.info("%s@%s loaded in %.2f s", info.model, version, loaded.seconds)

    async def _lookup(self, model: str, version: str) -> Loaded:
        """For `Front`: what is loaded of a model; a gateway loads on demand."""
        if self.config.role == "gateway":
            return await self._lookup_gateway(model, version)
        if model != self.config.model_name:
            raise NotFound(f"this node serves {self.config.model_name!r} only, not {model!r}")
        version = version or self.config.version or await self.mesh.registry.serving(model)
        serving = self.serving.get(version)
        if serving is None:
            raise NotFound(f"{model}@{version} is not served here")
        return serving.loaded

    async def _lookup_gateway(self, model: str, version: str) -> Loaded:
        info: ModelInfo = await self.mesh.model(f"{model}@{version}" if version else model)
        key = (info.model, info.version)
        if key not in self._gateway:
            self._gateway[key] = await load(self.mesh, self.config, info, edge=True, lighter=False)
        return self._gateway[key]

    # --- status -----------------------------------------------------------------------

    def _become(self, state: str, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        if state != self.state:
            self.since = timestamp()
        self.state, self.detail = state, detail
        log.info("%s: %s", state, detail)
        self._status()
        if self.on_change is not None:
            self.on_change({"event": state, "node": self.id, "detail": detail})

    def document(self) -> dict[str, Any]:
        """The status document as of now."""
        newest = list(self.serving.values())[-1] if self.serving else None
        servers = [server for serving in self.serving.values() for server in serving.servers]
        extra = {"host_id": self.mesh.claims.host} | self.extra
        if self.ready_ms:
            extra["ready_ms"] = self.ready_ms
        return status_document(
            self.config,
            self.id,
            self.state,
            self.since,
            self.detail,
            newest.info if newest else None,
            servers,
            extra,
        )

    def _status(self) -> None:
        self._tell(self.mesh.subjects.status(self.id), self.document())

    def _event(self, kind: str, detail: dict[str, Any]) -> None:
        doc = {"v": 1, "kind": kind, "node": self.id, "role": self.config.role, "at": timestamp()}
        self._tell(self.mesh.subjects.event(kind), doc | detail)

    def _tell(self, subject: str, doc: dict[str, Any]) -> None:
        try:
            self.mesh.link.publish(subject, json.dumps(doc).encode())
        except SwarmError as error:
            log.debug("not published: %s", error)

    async def _publish_status(self) -> None:
        while True:
            self._status()
            await asyncio.sleep(STATUS_EVERY)

    # --- end --------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Drain and say goodbye; bounded in time."""
        if self.state in ("ready", "loading"):
            self._become("draining", "finishing what runs")
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                for version in list(self.serving):
                    await self.serving.pop(version).drain()
                    if (task := self._runs.pop(version, None)) is not None:
                        await task
        except (TimeoutError, SwarmError, ShardsError) as error:
            log.warning("left without draining: %r", error)
        for task in self._runs.values():
            task.cancel()
        for loaded in self._gateway.values():
            loaded.close()
        if self.front is not None:
            self.front.close()
        self._become("left", "stopped")
        if self.became_ready.is_set():
            self._event("left", {})
        await self.mesh.close()
