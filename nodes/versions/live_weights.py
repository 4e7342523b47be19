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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from nodes.config import NodeConfig
from nodes.low_priority import in_low_priority_thread
from nodes.stage.selftest import Known
from nodes.stage.server import StageServer
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.serving import EDGE, Loaded, in_background
from shards.errors import DeltaError, DeltaFault
from shards.manifest import Manifest, verify
from shards.runtimes.load import tolerance_of
from shards.runtimes.ort import OrtRuntime, trim_memory
from shards.runtimes.runtime import maker_of
from shards.runtimes.stage import StageRuntime
from shards.weights.live import LiveWeights, Trial
from swarm.errors import NotFound
from swarm.mesh import Mesh

log = logging.getLogger("swarm.node")

Tensors = Mapping[str, np.ndarray]
LONGEST_RUN = 2.0  # seconds
# Of all stages' runs: a new head of such short ones is tried on the event loop. A thread of low
# priority, on cores that others want, begins later than that.
INLINE_BELOW_MS = 1.0


@dataclass(eq=False)
class _Held:
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
class _Changed:
    """known: of the stages with another session or head, what they gave for known input. tensors:
    this node's copies."""

    stages: dict[int, StageRuntime]
    known: dict[int, Known | None]
    tensors: Tensors


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
        held = self._held.get((model, version))
        if held is None:
            return False
        async with held.one_at_a_time:
            if n <= held.n:
                return False
            if base and base not in [s.sha256 for s in (await self._manifest(held)).shards]:
                fault = f"weight version {n} was learned on base {base[:12]!r}, not on this model"
                raise DeltaError(DeltaFault.BASE, fault)
            before = held.loaded.runtimes()
            changed = await self._changed(held, before, n, tensors)
            held.loaded.replace(changed.stages, changed.known)
            held.n, held.tensors = n, changed.tensors
        log.info("%s@%s computes with weight version %d", model, version, n)
        ended = _ended_sessions(before, changed.stages)
        if ended:
            del before  # else this method would keep the old sessions alive
            await in_low_priority_thread(partial(_trim_behind, ended))
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
            known: dict[int, Known | None] = {}
            if held.n:
                stages = {server.stage: fresh}
                changed = await self._changed(held, stages, held.n, held.tensors)
                fresh, known = changed.stages[server.stage], changed.known
            held.loaded.stages[server.stage] = fresh
            if server.stage in known:
                # The known answer of learned weights came from the session that is not trusted.
                server.take_weights(fresh, known[server.stage])
            else:
                server.replace_model(fresh)

    async def _changed(
        self, held: _Held, stages: Mapping[int, StageRuntime], n: int, tensors: Tensors
    ) -> _Changed:
        """The stages with copies of other weights."""
        artifacts: dict[int, bytes] = {}
        for stage, runtime in stages.items():
            live = held.live.get(stage)
            if live.needs_artifact(tensors) if live else tensors and _has_weights(runtime):
                artifacts[stage] = await self._artifact(held, stage)
        tolerance = tolerance_of(await self._manifest(held)) if artifacts else 0.0

        def change() -> _Changed:
            with held.in_thread:
                return changed_stages()

        def changed_stages() -> _Changed:
            changed: dict[int, StageRuntime] = {}
            known: dict[int, Known | None] = {}
            kept = {name: np.array(array) for name, array in tensors.items()}
            for stage, runtime in stages.items():
                artifact = artifacts.get(stage)
                if artifact is not None:
                    verify(artifact, runtime.shard.sha256, runtime.shard.file)
                if artifact is not None and stage not in held.live:
                    base = runtime.numbered(0)
                    held.live[stage] = LiveWeights(base, artifact, tolerance=tolerance)
                live = held.live.get(stage)
                if live is None:  # no weights of its own, or none that ever changed
                    changed[stage] = runtime.numbered(n)
                else:
                    changed[stage] = live.with_weights(n, kept, runtime, artifact)
                    if changed[stage].runtime is not runtime.runtime and stage != EDGE:
                        known[stage] = _known(changed[stage], live.trial)
            return _Changed(changed, known, kept)

        if not artifacts and not held.in_thread.locked():
            swaps = not any(live.needs_session(tensors) for live in held.live.values())
            if swaps and sum(s.compute_ms for s in stages.values()) < INLINE_BELOW_MS:
                return change()
        return await in_background(self._config, change)

    async def _manifest(self, held: _Held) -> Manifest:
        if held.manifest is None:
            info = held.loaded.info
            document = await self._mesh.registry.manifest(info.model, info.version)
            held.manifest = Manifest.from_json(document)
        return held.manifest

    async def _artifact(self, held: _Held, stage: int) -> bytes:
        """The file of a stage."""
        manifest = await self._manifest(held)
        file = await self._artifacts.get(manifest, manifest.shard(stage).file)
        return await asyncio.to_thread(file.read_bytes) if isinstance(file, Path) else file


def _known(stage: StageRuntime, trial: Trial | None) -> Known | None:
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
