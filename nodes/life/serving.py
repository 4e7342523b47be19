"""One model version on one node: load, self-test, warm; serve its lanes; drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from functools import partial

from nodes.life.config import NodeConfig, check_payload, credit_of, lane_options
from nodes.life.low_priority import gently_off_loop
from nodes.stage.jobs import INLINE_ALONE_BELOW, StageOptions
from nodes.stage.outbox import NextLane, Outbox
from nodes.stage.server import StageServer
from shards.manifest import Manifest
from shards.runtimes.load import StageRuntime, load_lighter, load_stage
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.synthetic import random_feeds
from swarm.clock import ServerClock
from swarm.errors import NotFound, SwarmError
from swarm.lanes import COVER, QUEUE, FreshLane, Lane, consumer_config, ensure_lanes
from swarm.link import LinkMessage, jetstream
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.priorities import PRIMARY
from swarm.subjects import ANY

IDLE_LANE = 3.0  # seconds a gone node's lane is empty before it is deleted

log = logging.getLogger("swarm.node")


@dataclass
class Loaded:
    """The runtimes of a version that this node needs: its stages, and stage 0 if it asks."""

    info: ModelInfo
    stages: dict[int, StageRuntime]
    edge: StageRuntime | None
    lighter: OrtRuntime | None
    seconds: float
    lighter_seconds: float = 0.0

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
        light_ms = light.warm() if light is not None else 0.0
        return Loaded(info, stages, first, light, time.monotonic() - started, light_ms / 1e3)

    if config.threads > 1:
        # The runtime's own threads would inherit the low priority, for good.
        return await asyncio.to_thread(build)
    return await gently_off_loop(build)


class Serving:
    """The lanes of one version, served. `run()` owns their tasks until `drain()`."""

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        loaded: Loaded,
        node: str,
        clock: ServerClock,
        next_lane: NextLane,
    ) -> None:
        self.info = loaded.info
        self.loaded = loaded
        self.servers: list[StageServer] = []
        self.fresh: dict[int, FreshLane] = {}
        self._mesh = mesh
        self._config = config
        self._clock = clock
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._idle_since: dict[tuple[int, str], float] = {}
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._drained = asyncio.Event()
        self._cancel_sid = mesh.link.subscribe(
            mesh.subjects.cancel(self.info.model, self.info.version), self._cancel
        )
        check_payload(self.info, mesh.link)
        self._lane_options = lane_options(self.info, config)
        for stage, runtime in loaded.stages.items():
            self._add_stage(stage, runtime, node, next_lane)

    def _add_stage(self, stage: int, runtime: StageRuntime, node: str, next_lane: NextLane) -> None:
        mesh, info, config = self._mesh, self.info, self._config
        out = Outbox(
            mesh.link,
            mesh.subjects,
            mesh.publisher,
            info,
            stage,
            node,
            mesh.claims,
            partial(mesh.placement.at, info, stage + 1),
            next_lane,
            mesh.direct,
        )
        # Several stages on one loop would wait for each other.
        alone = len(self.loaded.stages) == 1
        options = StageOptions(
            max_batch=config.max_batch,
            max_wait=config.max_wait,
            quota=config.quota,
            inline_alone_below=INLINE_ALONE_BELOW if alone else 0.0,
        )
        server = StageServer(mesh.link, runtime, out, options, mesh.claims)
        if runtime.runtime is not None:
            server.learn_known(random_feeds(runtime.shard.receives, seed=1))
        self.servers.append(server)
        self._add_lane(server, ANY)
        fresh = FreshLane(
            mesh.link,
            mesh.subjects.fresh(info.model, info.version, stage),
            server.delivered,
            mesh.direct,
            QUEUE if config.priority == PRIMARY else COVER,
        )
        # Queue groups know no priorities: a fallback listens only when it must.
        if config.priority == PRIMARY:
            fresh.open()
        self.fresh[stage] = fresh

    def _cancel(self, message: LinkMessage) -> None:
        request_id = bytes(message.data[:128]).decode(errors="replace")
        for server in self.servers:
            server.cancel(request_id)

    def _add_lane(self, server: StageServer, name: str) -> Lane:
        mesh, info = self._mesh, self.info
        credit, most = credit_of(self._config.credit, server.model.compute_ms / 1e3)
        lane = Lane(
            mesh.link,
            mesh.subjects.stream(info.model, info.version),
            consumer_config(
                mesh.subjects, info.model, info.version, server.stage, self._lane_options, name
            ),
            partial(
                ensure_lanes, mesh.link, mesh.subjects, info.model, info.version, self._lane_options
            ),
            server.delivered,
            priority=self._config.priority,
            credit=credit,
            max_credit=most,
            clock=self._clock,
        )
        server.lanes.append(lane)
        mesh.direct.listen(self._subject(server.stage, name), server.intake.came)
        self._lanes[(server.stage, name)] = lane
        return lane

    def _subject(self, stage: int, lane: str) -> str:
        return self._mesh.subjects.features(self.info.model, self.info.version, stage, lane)

    def open_lane(self, server: StageServer, name: str) -> None:
        """Serve one more lane of a stage: this node's own, or one that lost its node."""
        key = (server.stage, name)
        if key not in self._lanes and self._group is not None and not self._drained.is_set():
            lane = self._add_lane(server, name)
            self._tasks[key] = self._group.create_task(lane.run(), name=f"lane {name}")

    async def close_idle_lanes(self, own: str) -> None:
        """Stop serving, and delete, lanes of gone nodes that have been empty for a while."""
        now = time.monotonic()
        for key, lane in list(self._lanes.items()):
            if key[1] in (ANY, own):
                continue
            if lane.pending or lane.in_hand:
                self._idle_since.pop(key, None)
            elif now - self._idle_since.setdefault(key, now) > IDLE_LANE:
                await self._close_lane(key, lane, delete=True)

    async def _close_lane(self, key: tuple[int, str], lane: Lane, delete: bool) -> None:
        self._mesh.direct.forget(self._subject(*key))
        await lane.drain()
        if (task := self._tasks.pop(key, None)) is not None:
            await task
        if delete:
            await jetstream.delete_consumer(
                self._mesh.link, lane.stream, str(lane.config["durable_name"])
            )
        del self._lanes[key]
        self._idle_since.pop(key, None)
        for server in self.servers:
            if lane in server.lanes:
                server.lanes.remove(lane)

    async def run(self) -> None:
        """Serve until drained. A lane's failure ends all and is raised."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            # An edge has no lanes, and serves all the same.
            group.create_task(self._drained.wait(), name="until drained")
            for key, lane in self._lanes.items():
                self._tasks[key] = group.create_task(lane.run(), name=f"lane {key}")

    async def ready(self, timeout: float = 30.0) -> None:
        """Wait until every lane pulls. Raises `TimeoutError`."""
        await asyncio.gather(*(lane.ready(timeout) for lane in self._lanes.values()))

    async def drain(self) -> None:
        """Give back what is queued, finish what runs, and free the runtimes."""
        await asyncio.gather(*(fresh.close() for fresh in self.fresh.values()))
        await asyncio.gather(*(server.drain() for server in self.servers))
        for key in self._lanes:
            self._mesh.direct.forget(self._subject(*key))  # until now it was refused
        self._drained.set()
        self._mesh.link.unsubscribe(self._cancel_sid)
        with contextlib.suppress(TimeoutError, SwarmError):
            await self._mesh.link.flush(1.0)
        for server in self.servers:
            await asyncio.to_thread(server.close)
        self.loaded.close()
