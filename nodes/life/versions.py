"""The model versions that a node serves, kept in agreement with the mesh's desired state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from nodes.life.artifacts import NodeArtifacts
from nodes.life.config import NodeConfig
from nodes.life.following import WeightFollower
from nodes.life.live_weights import NodeWeights
from nodes.life.serving import Loaded, Serving, load
from nodes.stage.server import LanePicker, StageAudit, StageServer
from swarm.clock import ServerClock
from swarm.errors import NotFound, SwarmError
from swarm.lanes import TwoDomains, check_one_domain, streams_of
from swarm.mesh import Mesh
from swarm.services.weights import Weights
from swarm.trust.allowed import AllowList

log = logging.getLogger("swarm.node")

LONGEST_RUN_US = 60_000_000  # a longer time in a checkpoint is not believed


class Versions:
    """The served versions, by name; a gateway's models, loaded on demand.

    on_desired(model, document) is called with each desired state that was read. lanes: the
    routing policy. usual_times: `usual_times()` of this node's predecessor, or {}. tell(kind,
    detail): publishes an event.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        node: str,
        on_desired: Callable[[str, dict[str, Any]], None],
        lanes: LanePicker,
        usual_times: Mapping[str, int],
        tell: Callable[[str, dict[str, Any]], None],
        audit: StageAudit | None = None,
    ) -> None:
        self.serving: dict[str, Serving] = {}
        self._mesh = mesh
        self._config = config
        self._node = node
        self._on_desired = on_desired
        self._lanes = lanes
        self._usual_times = usual_times
        self._audit = audit
        self._tell = tell
        self._artifacts = NodeArtifacts(
            mesh.registry, config.cache, config.cache_limit, config.model_key
        )
        self.weights = NodeWeights(mesh, self._artifacts, config, self._behind)
        teachers, signed = AllowList.read(config.teachers), config.trusted is not None
        ledgers = Weights(mesh.link, mesh.subjects, allowed=teachers, signed=signed)
        self.follower = WeightFollower(ledgers, self.weights.take, tell)
        self._clock = ServerClock()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._gateway: dict[tuple[str, str], Loaded] = {}

    def _behind(self, model: str, version: str, n: int) -> None:
        self.follower.behind(model, version, n)

    def all(self) -> list[Serving]:
        """The versions being served, in the order of their loading."""
        return list(self.serving.values())

    def servers(self) -> list[StageServer]:
        """The stages of all versions."""
        return [server for serving in self.serving.values() for server in serving.servers]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """One task for each version; a task that ends has failed."""
        return list(self._runs.values())

    async def reconcile(self, on_loading: Callable[[str], None]) -> None:
        """Load the versions that are missing, then drain those that shall serve no more.

        on_loading(version) is called before each loading. Raises `NotFound` when the model is not
        in the mesh yet, `Unavailable`, and the error that ended a version's task.
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
                + self._about_domain()
            )
        return [str(entry["version"]) for entry in desired["serve"]]

    def _about_domain(self) -> str:
        """For a node that finds nothing: at a site, the models may be at the hub."""
        link = self._mesh.link
        if not link.domain:
            return ""
        return f" (in JetStream domain {link.domain!r}; another one: --domain NAME)"

    async def _serve(self, version: str) -> None:
        mesh = self._mesh
        info = await mesh.registry.info(self._config.model_name, version)
        others = asyncio.create_task(streams_of(mesh.link, mesh.subjects, info.model, version))
        try:
            loaded = await load(
                mesh,
                self._artifacts,
                self._config,
                info,
                edge=self._config.answers_requests,
                lighter=self._config.role == "edge",
                urgent=self._config.missed and not self.serving,
                tell=self._tell,
            )
            own = mesh.subjects.stream(info.model, version, mesh.link.domain)
            try:
                check_one_domain(await others, own, f"{info.model}@{version}")
            except TwoDomains:
                loaded.close()
                raise
        finally:
            others.cancel()
        self.weights.add(loaded)
        await self.follower.follow(info.model, version)
        serving = Serving(
            self._mesh,
            self._config,
            loaded,
            self._node,
            self._clock,
            self._lanes,
            self.weights.behind,
            self._audit,
        )
        self._prime(serving)
        self._runs[version] = asyncio.create_task(serving.run(), name=f"serve {version}")
        self.serving[version] = serving
        await serving.ready()
        log.info("%s@%s loaded in %.2f s", info.model, version, loaded.seconds)

    def _prime(self, serving: Serving) -> None:
        """Start from the times that the stages took before this node's restart."""
        for server in serving.servers:
            p99 = self._usual_times.get(_time_key(server))
            if isinstance(p99, int) and 0 < p99 < LONGEST_RUN_US:
                server.stats.compute.add(p99 / 1e6, time.monotonic())

    def usual_times(self) -> dict[str, int]:
        """p99 of each stage's run, microseconds, for this node's successor."""
        now = time.monotonic()
        return {
            _time_key(server): int(server.stats.compute.percentile(0.99, now) * 1e6)
            for server in self.servers()
        }

    async def reload(self, server: StageServer) -> None:
        """Load a new session for a stage whose old one cannot be trusted any more. It computes with
        the weights of the old one."""
        loaded = await load(
            self._mesh,
            self._artifacts,
            self._config,
            server.info,
            edge=False,
            lighter=False,
            stages=[server.stage],
            tell=self._tell,
        )
        await self.weights.renew(server, loaded.stages[server.stage])

    async def _retire(self, version: str) -> None:
        serving = self.serving.pop(version)
        self.follower.unfollow(serving.info.model, version)
        await serving.drain()
        self.weights.forget(serving.loaded)
        if (task := self._runs.pop(version, None)) is not None:
            await task

    async def lookup(self, model: str, version: str) -> Loaded:
        """The runtimes of a model version on this node. Raises `NotFound`."""
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
            loaded = await load(
                self._mesh,
                self._artifacts,
                self._config,
                info,
                edge=True,
                lighter=False,
                tell=self._tell,
            )
            self.weights.add(loaded)
            await self.follower.follow(model, version)
            self._gateway[key] = loaded
        return self._gateway[key]

    async def drain(self) -> None:
        """Give back what has not begun, finish what runs, and free all runtimes."""
        for version in list(self.serving):
            try:
                await self._retire(version)
            except SwarmError as error:
                log.warning("version %s left without draining: %s", version, error)
        for task in self._runs.values():
            task.cancel()
        for loaded in self._gateway.values():
            loaded.close()


def _time_key(server: StageServer) -> str:
    return f"{server.info.model}/{server.stage}"
