"""The weights that a node's runtimes compute with, after the base's: taken whole, or not at all.

A weight version of a model version is a number and tensors (`swarm.learning.record`). `take` brings
every runtime of this node to it: the stages that it serves, an edge's or a gateway's first layers.
New sessions are built and tested in a thread of low priority, beside those that serve. Then all of
the node's runtimes are replaced in one turn of the event loop. Runs under way end on the old ones.

A model version whose weights never change costs nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from nodes.life.artifacts import NodeArtifacts
from nodes.life.config import NodeConfig
from nodes.life.low_priority import in_low_priority_thread
from nodes.life.serving import EDGE, Loaded, in_background, known_of
from nodes.stage.selftest import Known
from nodes.stage.server import StageServer
from shards.manifest import Manifest
from shards.runtimes.load import tolerance_of
from shards.runtimes.ort import OrtRuntime, trim_memory
from shards.runtimes.stage import StageRuntime
from shards.weights.live import LiveWeights
from swarm.errors import NotFound
from swarm.mesh import Mesh

log = logging.getLogger("swarm.node")

Tensors = Mapping[str, np.ndarray]
T = TypeVar("T")


@dataclass(eq=False)
class _Held:
    """One loaded model version. live: of its stages, from their first change on."""

    loaded: Loaded
    n: int = 0
    tensors: Tensors = field(default_factory=dict)
    live: dict[int, LiveWeights] = field(default_factory=dict)
    manifest: Manifest | None = None
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class NodeWeights:
    """The weight versions of one node's runtimes.

    on_behind(model, version, n): a request asks for weight version n, which this node does not have
    yet; an announcement was late, or lost.
    """

    def __init__(
        self,
        mesh: Mesh,
        artifacts: NodeArtifacts,
        config: NodeConfig,
        on_behind: Callable[[str, str, int], None] = lambda model, version, n: None,
    ) -> None:
        self._mesh = mesh
        self._artifacts = artifacts
        self._config = config
        self._on_behind = on_behind
        self._held: dict[tuple[str, str], _Held] = {}

    def behind(self, model: str, version: str, n: int) -> None:
        """A request asks for a weight version that this node does not have."""
        self._on_behind(model, version, n)

    def add(self, loaded: Loaded) -> None:
        """A model version was loaded; `take` works for it from now on."""
        self._held[loaded.info.model, loaded.info.version] = _Held(loaded)

    def forget(self, loaded: Loaded) -> None:
        """A model version serves no more."""
        self._held.pop((loaded.info.model, loaded.info.version), None)

    def present(self, model: str, version: str) -> int:
        """The weight version that this node computes with; 0 for the base, or what is not here."""
        held = self._held.get((model, version))
        return 0 if held is None else held.n

    async def take(self, model: str, version: str, n: int, tensors: Tensors) -> bool:
        """Compute with weight version `n` from now on: the base's weights, but for these tensors.

        tensors: full values, by the names that the shards' files have; {} is the base again. Those
        of stages that this node does not run are passed over. Returns False where `n` is not newer
        than the present one, or the model version is not loaded here.

        Raises `shards.errors.DeltaError` (tensors that do not fit, or are not finite), `ModelError`
        (the runtime refuses them), `swarm.errors.SwarmError` (the shard's file could not be
        fetched). The node computes with its present weights then, in all of its stages.
        """
        held = self._held.get((model, version))
        if held is None:
            return False
        async with held.one_at_a_time:
            if n <= held.n:
                return False
            kept = {name: np.array(array) for name, array in tensors.items()}
            stages = {}
            for stage, runtime in held.loaded.runtimes().items():
                stages[stage] = await self._changed(held, runtime, n, kept)
            await self._replace(held, stages)
            held.n, held.tensors = n, kept
        log.info("%s@%s computes with weight version %d", model, version, n)
        await in_low_priority_thread(trim_memory)
        return True

    async def renew(self, server: StageServer, fresh: StageRuntime) -> None:
        """A stage gets a session that was loaded anew, with the present weights.

        Raises as `take` does; the stage keeps its session then.
        """
        held = self._held.get((server.info.model, server.info.version))
        if held is None:
            raise NotFound(f"{server.info.model}@{server.info.version} is not served here any more")
        async with held.one_at_a_time:
            # Its last session was built by the one that is not trusted any more.
            held.live.pop(server.stage, None)
            if held.n:
                fresh = await self._changed(held, fresh, held.n, held.tensors)
            held.loaded.stages[server.stage] = fresh
            server.replace_model(fresh)

    async def _changed(
        self, held: _Held, runtime: StageRuntime, n: int, tensors: Tensors
    ) -> StageRuntime:
        """A stage with other weights; or under another number, where none of them is its own."""
        stage = runtime.shard.stage
        if not isinstance(runtime.runtime, OrtRuntime) or not (tensors or stage in held.live):
            return runtime.numbered(n)
        artifact: bytes | None = None
        live = held.live.get(stage)
        if live is None:
            artifact = await self._artifact(held, stage)
            tolerance = tolerance_of(await self._manifest(held))
            live = LiveWeights(runtime.numbered(0), artifact, tolerance=tolerance)
            held.live[stage] = live
        if artifact is None and live.needs_artifact(tensors):
            artifact = await self._artifact(held, stage)
        return await self._in_thread(lambda: live.with_weights(n, tensors, runtime, artifact))

    async def _replace(self, held: _Held, stages: Mapping[int, StageRuntime]) -> None:
        """All at once, behind the runs of known input that later self-tests compare with."""
        known: dict[int, Known | None] = {}
        for stage, runtime in stages.items():
            if stage != EDGE:
                known[stage] = await self._in_thread(partial(known_of, runtime))
        held.loaded.replace(stages, known)

    async def _manifest(self, held: _Held) -> Manifest:
        if held.manifest is None:
            info = held.loaded.info
            document = await self._mesh.registry.manifest(info.model, info.version)
            held.manifest = Manifest.from_json(document)
        return held.manifest

    async def _artifact(self, held: _Held, stage: int) -> bytes:
        """The verified file of a stage."""
        manifest = await self._manifest(held)
        file = await self._artifacts.get(manifest, manifest.shard(stage).file)
        return await self._in_thread(file.read_bytes) if isinstance(file, Path) else file

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await in_background(self._config, work)
