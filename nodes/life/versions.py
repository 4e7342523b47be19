"""The model versions that a node serves: made to agree with the mesh's desired state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from nodes.life.config import NodeConfig
from nodes.life.hugepages import collapse_memory
from nodes.life.low_priority import gently_off_loop
from nodes.life.serving import Loaded, Serving, load
from nodes.stage.server import LanePicker, StageServer
from swarm.clock import ServerClock
from swarm.errors import NotFound, SwarmError
from swarm.mesh import Mesh

log = logging.getLogger("swarm.node")


class Versions:
    """What is served, by version; a gateway's models, loaded on demand.

    on_desired(model, document) is called with each desired state that was read.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        node: str,
        answers_requests: bool,
        on_desired: Callable[[str, dict[str, Any]], None],
        lanes: LanePicker,
    ) -> None:
        self.serving: dict[str, Serving] = {}
        self._mesh = mesh
        self._config = config
        self._node = node
        self._answers_requests = answers_requests
        self._on_desired = on_desired
        self._lanes = lanes
        self.restored: dict[str, Any] = {}
        self._clock = ServerClock()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._gateway: dict[tuple[str, str], Loaded] = {}

    def all(self) -> list[Serving]:
        """The versions being served."""
        return list(self.serving.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Their tasks: one that ends has failed."""
        return list(self._runs.values())

    async def reconcile(self, on_loading: Callable[[str], None]) -> None:
        """Load what is missing, then drain what is over.

        Raises `NotFound` when the model is not in the mesh yet, `Unavailable`, and whatever
        ended a version's task.
        """
        for version, task in list(self._runs.items()):
            if task.done():
                del self._runs[version], self.serving[version]
                task.result()
        if self._config.role == "gateway":
            return
        wanted = await self._wanted()
        for version in wanted:
            if version not in self.serving:
                on_loading(version)
                await self._serve(version)
        for version in [v for v in self.serving if v not in wanted]:
            log.info("version %s serves no more", version)
            await self._retire(version)

    async def _wanted(self) -> list[str]:
        name, pinned = self._config.model_name, self._config.version
        desired = await self._mesh.registry.desired(name)
        if desired is not None:
            self._on_desired(name, desired)
        if pinned:
            await self._mesh.registry.manifest(name, pinned)
            return [pinned]
        if desired is None:
            raise NotFound(
                f"model {name!r} is not in mesh {self._config.mesh!r} yet: "
                "push it (`swarm model push DIR`) and this node goes on by itself"
            )
        return [str(entry["version"]) for entry in desired["serve"]]

    async def _serve(self, version: str) -> None:
        info = await self._mesh.registry.info(self._config.model_name, version)
        loaded = await load(
            self._mesh,
            self._config,
            info,
            edge=self._answers_requests,
            lighter=self._config.role == "edge",
        )
        serving = Serving(self._mesh, self._config, loaded, self._node, self._clock, self._lanes)
        self._prime(serving)
        self._runs[version] = asyncio.create_task(serving.run(), name=f"serve {version}")
        self.serving[version] = serving
        await serving.ready()
        size = await gently_off_loop(collapse_memory)  # all that a request touches is there by now
        text = "%s@%s loaded in %.2f s, %d MB are in huge pages"
        log.info(text, info.model, version, loaded.seconds, size >> 20)

    def _prime(self, serving: Serving) -> None:
        """Start from how long the stages took before a restart."""
        known = self.restored.get("compute_p99_us")
        for server in serving.servers:
            key = f"{server.info.model}/{server.stage}"
            p99 = known.get(key) if isinstance(known, dict) else None
            if isinstance(p99, int) and 0 < p99 < 60_000_000:
                server.stats.compute.add(p99 / 1e6, time.monotonic())

    async def reload(self, server: StageServer) -> None:
        """A new session for a stage whose old one cannot be trusted any more."""
        loaded = await load(self._mesh, self._config, server.info, edge=False, lighter=False)
        server.replace_model(loaded.stages[server.stage])

    async def _retire(self, version: str) -> None:
        await self.serving.pop(version).drain()
        if (task := self._runs.pop(version, None)) is not None:
            await task

    async def lookup(self, model: str, version: str) -> Loaded:
        """What is loaded of a model version. Raises `NotFound`."""
        if self._config.role == "gateway":
            return await self._lookup_gateway(model, version)
        if model != self._config.model_name:
            raise NotFound(f"this node serves {self._config.model_name!r} only, not {model!r}")
        serving = self.serving.get(version)
        if serving is None:
            raise NotFound(f"{model}@{version} is not served here")
        return serving.loaded

    async def _lookup_gateway(self, model: str, version: str) -> Loaded:
        key = (model, version)
        if key not in self._gateway:
            info = await self._mesh.model(f"{model}@{version}")
            self._gateway[key] = await load(
                self._mesh, self._config, info, edge=True, lighter=False
            )
        return self._gateway[key]

    async def drain(self) -> None:
        """Give everything back and free it."""
        for version in list(self.serving):
            try:
                await self._retire(version)
            except SwarmError as error:
                log.warning("version %s left without draining: %s", version, error)
        for task in self._runs.values():
            task.cancel()
        for loaded in self._gateway.values():
            loaded.close()
