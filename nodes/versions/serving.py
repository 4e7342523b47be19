"""One model version's lanes on one node: served, drained."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nodes.audit import Audit
from nodes.connection.connection import Connection
from nodes.features import features
from nodes.limits import check_payload, credit_of, lane_options
from nodes.stage.compute import (
    INLINE_ALONE_BELOW,
    Compute,
    StageModel,
    StageOptions,
    StageRuns,
)
from nodes.stage.selftest import Known
from nodes.stage.server import StageServer
from nodes.versions.loaded import Loaded
from shards.runtimes.load import StageRuntime
from swarm.clock import ClockStep, ServerClock
from swarm.errors import SwarmError
from swarm.fleet.advertised import Where
from swarm.link import LinkMessage
from swarm.model import ModelInfo
from swarm.transport.source import SourceOptions

log = logging.getLogger("swarm.node")

FAST_LINK = 100e6  # bytes a second; a faster link is not told


def by_stage(servings: Iterable[Serving]) -> dict[Where, StageServer]:
    """The stages of these versions."""
    return {
        (server.info.model, server.info.version, server.stage): server
        for serving in servings
        for server in serving.servers
    }


def places(servings: Iterable[Serving]) -> set[Where]:
    """The stages of these versions, by whatever way they are served."""
    return {
        (serving.info.model, serving.info.version, stage)
        for serving in servings
        for stage in serving.stages
    }


def serving_of(shared: SharedByStages, loaded: Loaded) -> Serving:
    """What serves a version. Raises as `Serving`."""
    return loaded.serving(shared) or Serving(shared, loaded)


def link_rate(servers: Iterable[StageServer]) -> float:
    """Bytes a second that the link of a node with these stages brings; 0.0 where it is fast."""
    rates = [rate for server in servers if 0 < (rate := server.source.link_rate) < FAST_LINK]
    return min(rates, default=0.0)


@dataclass(frozen=True, slots=True)
class SharedByStages:
    """What the stages of a node share. on_behind(model, version, n): a request asks for weight
    version n, which is not here yet. is_crowded: as for `StageServer`. on_step(info, stage, step):
    the clock of the server that leads the stage's stream was set."""

    connection: Connection
    on_step: Callable[[ModelInfo, int, ClockStep], None]
    on_behind: Callable[[str, str, int], None]
    audit: Audit | None
    is_crowded: Callable[[], bool]


def _nothing(stage: int) -> None:
    """No stage of this node goes on with another one's results."""


class Serving:
    """One version's stages on this node. `run()` owns their sources until `drain()`. Stages may be
    added and removed meanwhile."""

    def __init__(self, shared: SharedByStages, loaded: Loaded) -> None:
        """Raises `ResourceExhausted` where a cut does not fit into the server's messages."""
        mesh = shared.connection.mesh
        check_payload(loaded.info, mesh.link)
        self.info = loaded.info
        self.loaded = loaded
        self._mesh = mesh
        self._shared = shared
        self._drained = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.servers: list[StageServer] = []
        for stage in loaded.stages:
            self.servers.append(self._server(stage))
        loaded.on_replaced.append(self._replaced)
        self._cancel_sid = 0
        self._hear_cancels()

    def _hear_cancels(self) -> None:
        if self.servers and not self._cancel_sid:
            # An edge has no stages, and needs no right to hear of other requests.
            subject = self._mesh.subjects.cancel(self.info.model, self.info.version)
            self._cancel_sid = self._mesh.link.subscribe(subject, self._cancel)

    def _server(self, stage: int) -> StageServer:
        # Where every hop has to go through a lane, stages of one node do not skip theirs.
        whole = self._shared.connection.config.shares_memory
        beside = self._beside if whole else _nothing
        return server_of(self._shared, self.loaded, stage, self.loaded.stages[stage], beside=beside)

    def _beside(self, stage: int) -> StageServer | None:
        return next((server for server in self.servers if server.stage == stage), None)

    def _replaced(
        self, stages: Mapping[int, StageRuntime], known: Mapping[int, Known | None]
    ) -> None:
        for server in self.servers:
            if server.stage in known:
                server.take_weights(stages[server.stage], known[server.stage])
            elif server.stage in stages:
                server.replace_model(stages[server.stage])

    def _cancel(self, message: LinkMessage) -> None:
        request_id = bytes(message.data[:128]).decode(errors="replace")
        for server in self.servers:
            server.cancel(request_id)

    async def run(self) -> None:
        """Serve until drained. A lane's failure ends all and is raised."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            # An edge has no stages, and serves all the same.
            group.create_task(self._drained.wait(), name="until drained")
            for server in self.servers:
                self._run(server)

    def _run(self, server: StageServer) -> None:
        if self._group is not None:
            self._group.create_task(server.source.run(), name=f"stage {server.stage}")

    @property
    def stages(self) -> frozenset[int]:
        """The stages that are served, or about to be."""
        return frozenset(server.stage for server in self.servers)

    @property
    def devices(self) -> frozenset[str]:
        """Those that the stages compute on."""
        return frozenset(server.model.device for server in self.servers)

    def told(self) -> dict[Where, tuple[str, Any]]:
        """What else the gossip tells of the stages: a key and its value. Asked each second."""
        return {}

    def rows(self, now: float) -> dict[str, list[dict[str, Any]]]:
        """Lists of a status document, beside that of the stages with lanes."""
        return {} if self.loaded.look is None else self.loaded.look.status()

    def add(self, stage: int) -> StageServer:
        """Serve one more of the stages that are loaded, from now on."""
        server = self._server(stage)
        self.servers.append(server)
        self._hear_cancels()
        self._run(server)
        return server

    async def remove(self, stage: int) -> None:
        """Serve a stage no more: hand back what is queued, and finish what runs. The caller frees
        its runtime."""
        server = self._beside(stage)
        if server is None:
            return
        await server.drain()
        self.servers.remove(server)
        with contextlib.suppress(TimeoutError, SwarmError):
            await self._mesh.link.flush(1.0)
        await asyncio.to_thread(server.close)

    async def ready(self, timeout: float) -> None:
        """Wait until every lane pulls. Raises `TimeoutError`."""
        await asyncio.gather(*(server.source.ready(timeout) for server in self.servers))

    @property
    def waits_for(self) -> str:
        """The stages whose lanes do not pull at present, and why; "" while all pull."""
        waits = [
            f"stage {server.stage}: {server.source.waits_for}"
            for server in self.servers
            if server.source.waits_for
        ]
        return "; ".join(waits)

    @property
    def lacks(self) -> str:
        """What others have to serve before it can answer, and do not, in words; "" for nothing."""
        return ""

    async def drain(self) -> None:
        """Hand back what is queued, finish what runs, and free the runtimes."""
        await asyncio.gather(*(server.drain() for server in self.servers))
        self._drained.set()
        self._mesh.link.unsubscribe(self._cancel_sid)
        with contextlib.suppress(TimeoutError, SwarmError):
            await self._mesh.link.flush(1.0)
        for server in self.servers:
            await asyncio.to_thread(server.close)
        self.loaded.close()


def server_of(
    shared: SharedByStages,
    loaded: Loaded,
    stage: int,
    model: StageModel,
    *,
    beside: Callable[[int], StageServer | None] = _nothing,
    runs: Callable[..., StageRuns] = Compute,
) -> StageServer:
    """What serves a stage of a version on a node. runs: as for `StageServer`."""
    connection, info = shared.connection, loaded.info
    config = connection.config
    for each in features():
        for part in each.around_runs.keys() & loaded.parts.keys():
            runs = each.around_runs[part](loaded.parts[part], connection.mesh.link, info, runs)
    credit, most_credit = credit_of(config.credit, model.compute_ms / 1e3)
    source = SourceOptions(
        priority=config.priority,
        credit=credit,
        most_credit=most_credit,
        lanes=lane_options(info, config),
        clock=ServerClock(partial(shared.on_step, info, stage)),
    )
    # Several stages on one loop would wait for each other.
    alone = len(loaded.stages) == 1
    options = StageOptions(
        max_batch=config.max_batch,
        max_wait=config.max_wait,
        quota=config.quota,
        look=loaded.look if stage == 1 else None,
        inline_alone_below=INLINE_ALONE_BELOW if alone else 0.0,
    )
    return StageServer(
        connection.mesh.routes_for(info),
        info,
        stage,
        connection.id,
        model,
        source,
        options,
        next_lane=connection.router.next_lane,
        known=loaded.known.get(stage),
        on_behind=partial(shared.on_behind, info.model, info.version),
        audit=shared.audit,
        is_crowded=shared.is_crowded,
        beside=beside,
        runs=runs,
    )
