"""One model version on one node: load, self-test, warm; serve its lanes; drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from nodes.config import NodeConfig, check_payload, lane_options
from nodes.stage import StageOptions, StageServer
from shards.load import StageRuntime, load_lighter, load_stage
from shards.manifest import Manifest
from swarm.clock import ServerClock
from swarm.errors import NotFound
from swarm.lanes import PRIMARY, FreshLane, Lane, consumer_config, ensure_lanes
from swarm.mesh import Mesh
from swarm.model import ModelInfo

log = logging.getLogger("swarm.node")


@dataclass
class Loaded:
    """The runtimes of a version that this node needs: its stages, and stage 0 if it asks."""

    info: ModelInfo
    stages: dict[int, StageRuntime]
    edge: StageRuntime | None
    lighter: Any | None
    seconds: float

    def close(self) -> None:
        for runtime in (*self.stages.values(), self.edge, self.lighter):
            if runtime is not None:
                runtime.close()


async def load(
    mesh: Mesh, config: NodeConfig, info: ModelInfo, *, edge: bool, lighter: bool
) -> Loaded:
    """Fetch, verify, load, self-test and warm, in a thread.

    Raises `SwarmError` (`NotFound`, `Unavailable` …) and `shards.errors.ShardsError`.
    """
    started = time.monotonic()
    manifest = Manifest.from_json(await mesh.registry.manifest(info.model, info.version))
    wanted = config.stages_of(info)
    with_edge = edge and info.edge is not None
    names = [manifest.shard(k).file for k in ([0] if with_edge else []) + wanted]
    if lighter and manifest.lighter is not None:
        names.append(manifest.lighter.file)
    names = [name for name in names if name]
    files = await mesh.registry.fetch(info.model, info.version, names) if names else {}

    def build() -> Loaded:
        def fetch(name: str) -> bytes:
            if name not in files:
                raise NotFound(f"{info.model}@{info.version} lacks the file {name!r}")
            return files.pop(name)

        stages = {
            stage: load_stage(manifest, stage, fetch, threads=config.threads) for stage in wanted
        }
        first = load_stage(manifest, 0, fetch, threads=config.threads) if with_edge else None
        light = load_lighter(manifest, fetch, threads=config.threads) if lighter else None
        return Loaded(info, stages, first, light, time.monotonic() - started)

    return await asyncio.to_thread(build)


class Serving:
    """The lanes of one version, served. `run()` owns their tasks until `drain()`."""

    def __init__(
        self, mesh: Mesh, config: NodeConfig, loaded: Loaded, node: str, clock: ServerClock
    ) -> None:
        self.info = loaded.info
        self.loaded = loaded
        self.servers: list[StageServer] = []
        self.fresh: dict[int, FreshLane] = {}
        self._mesh = mesh
        self._lanes: list[Lane] = []
        self._drained = asyncio.Event()
        info, subjects = self.info, mesh.subjects
        check_payload(info, mesh.link)
        options = lane_options(info, config)
        stage_options = StageOptions(max_batch=config.max_batch, max_wait=config.max_wait)

        async def provision() -> None:
            await ensure_lanes(mesh.link, subjects, info.model, info.version, options)

        for stage, runtime in loaded.stages.items():
            server = StageServer(
                mesh.link,
                subjects,
                mesh.publisher,
                info,
                stage,
                node,
                runtime,
                stage_options,
                mesh.claims,
                partial(mesh.is_local, info, stage + 1),
            )
            fresh = FreshLane(
                mesh.link,
                subjects.fresh(info.model, info.version, stage),
                server.delivered,
            )
            # Queue groups know no priorities: a fallback listens only when it must.
            if config.priority == PRIMARY:
                fresh.open()
            self.fresh[stage] = fresh
            lane = Lane(
                mesh.link,
                subjects.stream(info.model, info.version),
                consumer_config(subjects, info.model, info.version, stage, options),
                provision,
                server.delivered,
                priority=config.priority,
                credit=config.credit,
                clock=clock,
            )
            server.lanes.append(lane)
            self.servers.append(server)
            self._lanes.append(lane)

    async def run(self) -> None:
        """Serve until drained. A lane's failure ends all and is raised."""
        async with asyncio.TaskGroup() as group:
            # An edge has no lanes, and serves all the same.
            group.create_task(self._drained.wait(), name="until drained")
            for lane in self._lanes:
                group.create_task(lane.run(), name=f"lane {lane.config['durable_name']}")

    async def ready(self, timeout: float = 30.0) -> None:
        await asyncio.gather(*(lane.ready(timeout) for lane in self._lanes))

    async def drain(self) -> None:
        """Give back what is queued, finish what runs, and free the runtimes."""
        await asyncio.gather(*(fresh.close() for fresh in self.fresh.values()))
        await asyncio.gather(*(server.drain() for server in self.servers))
        self._drained.set()
        with contextlib.suppress(TimeoutError):
            await self._mesh.link.flush(1.0) if self._mesh.link.connected else None
        for server in self.servers:
            await asyncio.to_thread(server.close)
        self.loaded.close()
