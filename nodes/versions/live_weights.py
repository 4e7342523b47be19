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
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from nodes.config import NodeConfig
from nodes.low_priority import in_low_priority_thread
from nodes.stage.selftest import Known
from nodes.stage.server import StageServer
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.loaded import EDGE, Loaded, in_background
from shards.errors import DeltaError, DeltaFault
from shards.manifest import Manifest, verify
from shards.runtimes.load import tolerance_of
from shards.runtimes.ort import OrtRuntime, trim_memory
from shards.runtimes.runtime import maker_of
from shards.runtimes.stage import StageRuntime
from shards.weights.live import LiveWeights, WeightsTrial
from swarm.errors import NotFound
from swarm.mesh import Mesh

log = logging.getLogger("swarm.node")

Tensors = Mapping[str, np.ndarray]
LONGEST_RUN = 2.0  # seconds
# Of all stages' runs: a new head of such short ones is tried on the event loop. A thread of low
# priority, on cores that others want, begins later than that.
INLINE_BELOW_MS = 1.0


@dataclass(eq=False)
class _Entry:
    """One loaded model version. live: of its stages, from their first change on."""

    loaded: Loaded
    n: int = 0
    tensors: Tensors = field(default_factory=dict)
    live: dict[int, LiveWeights] = field(default_factory=dict)
    manifest: Manifest | None = None
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    # A change that is cancelled goes on in its thread; the next one waits for it there.
    in_thread: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class _Renewed:
    """Runtimes with other weights. known: of the stages with another session or head, what they
    gave for known input. tensors: this node's copies."""

    stages: dict[int, StageRuntime]
    known: dict[int, Known | None]
    tensors: Tensors


class NodeWeights:
    """The weight versions of one node's runtimes."""

    def __init__(self, mesh: Mesh, artifacts: NodeArtifacts, config: NodeConfig) -> None:
        self._mesh = mesh
        self._artifacts = artifacts
        self._config = config
        self._entries: dict[tuple[str, str], _Entry] = {}

    def add(self, loaded: Loaded) -> None:
        """A model version was loaded; `take` works for it from now on."""
        self._entries[loaded.info.model, loaded.info.version] = _Entry(loaded)

    def forget(self, loaded: Loaded) -> None:
        """A model version serves no more."""
        self._entries.pop((loaded.info.model, loaded.info.version), None)

    async def add_stages(self, loaded: Loaded, more: Loaded) -> None:
        """Stages that were loaded for a version that serves: they join it, with its present
        weights. Raises as `take` does; `NotFound` where the version serves no more."""
        entry = self._entries.get((loaded.info.model, loaded.info.version))
        if entry is None or entry.loaded is not loaded:
            raise NotFound(f"{loaded.info.model}@{loaded.info.version} is not served here any more")
        async with entry.one_at_a_time:
            stages: Mapping[int, StageRuntime] = more.stages
            known: dict[int, Known | None] = dict(more.known)
            if entry.n:
                renewed = await self._renewed(entry, stages, entry.n, entry.tensors)
                stages, known = renewed.stages, known | renewed.known
            loaded.stages.update(stages)
            loaded.known.update({n: answer for n, answer in known.items() if answer is not None})

    async def remove_stage(self, loaded: Loaded, stage: int) -> None:
        """A stage of a version leaves this node; its runtime is closed."""
        entry = self._entries.get((loaded.info.model, loaded.info.version))
        lock = asyncio.Lock() if entry is None else entry.one_at_a_time
        async with lock:
            if entry is not None:
                entry.live.pop(stage, None)
            loaded.known.pop(stage, None)
            runtime = loaded.stages.pop(stage, None)
        if runtime is not None:
            await asyncio.to_thread(runtime.close)

    def present(self, model: str, version: str) -> int:
        """The weight version that this node computes with; 0 for the base, or what is not here."""
        entry = self._entries.get((model, version))
        return 0 if entry is None else entry.n

    async def take(
        self, model: str, version: str, n: int, tensors: Tensors, base: str = ""
    ) -> bool:
        """Compute with weight version `n` from now on: the base's weights, but for these tensors.

        tensors: full values, by the names that the shards' files have; {} is the base again. Those
        of stages that this node does not run are passed over. base: SHA-256 of the shard's file
        that they were learned on, '' where the caller has checked it. Returns False where `n` is
        not newer than the present one, or the model version is not loaded here.

        Raises `shards.errors.DeltaError` (another base; tensors that do not fit, or are not
        finite), `ModelError` (the runtime refuses them), `swarm.errors.SwarmError` (the shard's
        file could not be fetched). The node computes with its present weights then, in all of its
        stages.
        """
        entry = self._entries.get((model, version))
        if entry is None:
            return False
        async with entry.one_at_a_time:
            if n <= entry.n:
                return False
            if base and base not in [s.sha256 for s in (await self._manifest(entry)).shards]:
                fault = f"weight version {n} was learned on base {base[:12]!r}, not on this model"
                raise DeltaError(DeltaFault.BASE, fault)
            before = entry.loaded.runtimes()
            renewed = await self._renewed(entry, before, n, tensors)
            entry.loaded.replace(renewed.stages, renewed.known)
            entry.n, entry.tensors = n, renewed.tensors
        log.info("%s@%s computes with weight version %d", model, version, n)
        ended = _ended_sessions(before, renewed.stages)
        if ended:
            del before  # otherwise this method would keep the old sessions alive
            await in_low_priority_thread(partial(_trim_behind, ended))
        return True

    async def renew(self, server: StageServer, fresh: StageRuntime) -> None:
        """A stage gets a session that was loaded anew, with the present weights.

        Raises as `take` does; the stage keeps its session then.
        """
        entry = self._entries.get((server.info.model, server.info.version))
        if entry is None:
            raise NotFound(f"{server.info.model}@{server.info.version} is not served here any more")
        async with entry.one_at_a_time:
            if server.stage not in entry.loaded.stages:
                await asyncio.to_thread(fresh.close)
                raise NotFound(f"stage {server.stage} is not served here any more")
            # The stage's `LiveWeights` hold a session that was built from the one that is not
            # trusted any more.
            entry.live.pop(server.stage, None)
            known: dict[int, Known | None] = {}
            if entry.n:
                stages = {server.stage: fresh}
                renewed = await self._renewed(entry, stages, entry.n, entry.tensors)
                fresh, known = renewed.stages[server.stage], renewed.known
            entry.loaded.stages[server.stage] = fresh
            if server.stage in known:
                # The known answer of learned weights came from the session that is not trusted.
                server.take_weights(fresh, known[server.stage])
            else:
                server.replace_model(fresh)

    async def _renewed(
        self, entry: _Entry, stages: Mapping[int, StageRuntime], n: int, tensors: Tensors
    ) -> _Renewed:
        """The stages with copies of other weights."""
        artifacts: dict[int, bytes] = {}
        for stage, runtime in stages.items():
            live = entry.live.get(stage)
            if live.needs_artifact(tensors) if live else tensors and _has_weights(runtime):
                artifacts[stage] = await self._artifact(entry, stage)
        tolerance = tolerance_of(await self._manifest(entry)) if artifacts else 0.0
        build = partial(_build, entry, stages, n, tensors, artifacts, tolerance)
        if not artifacts and not entry.in_thread.locked():
            swaps = not any(live.needs_session(tensors) for live in entry.live.values())
            if swaps and sum(s.compute_ms for s in stages.values()) < INLINE_BELOW_MS:
                return build()
        return await in_background(self._config, build)

    async def _manifest(self, entry: _Entry) -> Manifest:
        if entry.manifest is None:
            info = entry.loaded.info
            document = await self._mesh.registry.manifest(info.model, info.version)
            entry.manifest = Manifest.from_json(document)
        return entry.manifest

    async def _artifact(self, entry: _Entry, stage: int) -> bytes:
        """The file of a stage."""
        manifest = await self._manifest(entry)
        file = await self._artifacts.get(manifest, manifest.shard(stage).file)
        return await asyncio.to_thread(file.read_bytes) if isinstance(file, Path) else file


def _build(
    entry: _Entry,
    stages: Mapping[int, StageRuntime],
    n: int,
    tensors: Tensors,
    artifacts: Mapping[int, bytes],
    tolerance: float,
) -> _Renewed:
    """Weight version `n` of these stages. artifacts: the files of those that need theirs."""
    renewed: dict[int, StageRuntime] = {}
    known: dict[int, Known | None] = {}
    copies = {name: np.array(array) for name, array in tensors.items()}
    with entry.in_thread:
        for stage, runtime in stages.items():
            artifact = artifacts.get(stage)
            if artifact is not None:
                verify(artifact, runtime.shard.sha256, runtime.shard.file)
            if artifact is not None and stage not in entry.live:
                base = runtime.numbered(0)
                entry.live[stage] = LiveWeights(base, artifact, tolerance=tolerance)
            live = entry.live.get(stage)
            if live is None:  # the stage has no weights, or none that has ever changed
                renewed[stage] = runtime.numbered(n)
                continue
            renewed[stage] = live.with_weights(n, copies, runtime, artifact)
            if renewed[stage].runtime is not runtime.runtime and stage != EDGE:
                known[stage] = _known(renewed[stage], live.trial)
    return _Renewed(renewed, known, copies)


def _known(stage: StageRuntime, trial: WeightsTrial | None) -> Known | None:
    return None if trial is None else Known(stage, trial.inputs, trial.outputs)


def _has_weights(stage: StageRuntime) -> bool:
    return maker_of(stage.runtime) is not None


def _ended_sessions(
    before: Mapping[int, StageRuntime], after: Mapping[int, StageRuntime]
) -> list[threading.Event]:
    """For each session that serves no more: an event, set when its last run has let it go."""
    ended = []
    for stage, present in before.items():
        old, new = present.runtime, after[stage].runtime
        if maker_of(old) is None or not isinstance(new, OrtRuntime):
            continue
        if not isinstance(old, OrtRuntime) or not new.shares_session(old):
            event = threading.Event()
            weakref.finalize(old, event.set)
            ended.append(event)
    return ended


def _trim_behind(ended: Sequence[threading.Event]) -> None:
    """Give the memory of sessions back to the system, once nobody uses them. Where a run lasts
    longer than that, the next trimming does it."""
    for event in ended:
        event.wait(LONGEST_RUN)
    trim_memory()
