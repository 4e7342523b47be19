"""The runtimes of a model version on one node: loaded, self-tested, warm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from nodes.config import NodeConfig
from nodes.connection.events import Tell
from nodes.features import first
from nodes.look import Look
from nodes.low_priority import in_low_priority_thread
from nodes.placing.ways import EDGE as EVERYTHING
from nodes.placing.ways import stages_held
from nodes.stage.selftest import Known, learned
from nodes.versions.artifacts import NodeArtifacts
from shards.errors import DoesNotFit
from shards.manifest import Manifest
from shards.runtimes.load import DeviceChange, Fetch, StageRuntime, load_lighter, load_stage
from shards.runtimes.ort import Level, OrtRuntime
from shards.runtimes.synthetic import random_feeds
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.mesh import Mesh
from swarm.model import ModelInfo

if TYPE_CHECKING:
    import numpy as np

    from nodes.versions.serving import Serving, SharedByStages

log = logging.getLogger("swarm.node")

OnReplaced = Callable[[Mapping[int, StageRuntime], Mapping[int, Known | None]], None]

# Seconds for a stage's run on known input, and how many times as long as its usual run besides.
KNOWN_WITHIN, KNOWN_FACTOR = 10.0, 20.0
EDGE = 0  # the stage of an edge's or a gateway's first layers
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a stage made. steps: what the steps inside its run made, by name, None for what was left
    out."""

    outputs: dict[str, np.ndarray]
    steps: Mapping[str, Mapping[str, np.ndarray] | None] = field(default_factory=dict)


@dataclass
class Loaded:
    """The runtimes of a version that this node needs: its stages, and stage 0 if it asks.

    local: stages that an edge computes itself (`--placement`), for nobody else. parts: of its
    manifest, which features read. known: what the
    stages gave for known input, by stage (`learn_known`). on_replaced: callbacks of those that
    compute with the stages, called when the runtimes are replaced. look: at the requests of stage
    1, where the version has one and that stage is here.
    """

    info: ModelInfo
    stages: dict[int, StageRuntime]
    edge: StageRuntime | None
    lighter: OrtRuntime | None
    seconds: float
    lighter_seconds: float = 0.0
    known: dict[int, Known] = field(default_factory=dict)
    on_replaced: list[OnReplaced] = field(default_factory=list)
    local: dict[int, StageRuntime] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    look: Look | None = None

    @property
    def weights(self) -> int:
        """The weight version that the runtimes compute with."""
        return max([stage.weights_version for stage in self.runtimes().values()], default=0)

    def runtimes(self) -> dict[int, StageRuntime]:
        """The runtimes whose weights may change, by stage."""
        stages = {**self.local, **self.stages}
        if self.edge is not None:
            stages[EDGE] = self.edge
        return stages

    def replace(
        self, stages: Mapping[int, StageRuntime], known: Mapping[int, Known | None]
    ) -> None:
        """Compute with these runtimes from now on. known: of the stages that answer otherwise than
        before, and that are tested while they serve."""
        for stage, runtime in stages.items():
            if stage == EDGE and self.edge is not None:
                self.edge = runtime
            elif stage in self.local:
                self.local[stage] = runtime
            else:
                self.stages[stage] = runtime
        for stage, answer in known.items():
            self.known.pop(stage, None)
            if answer is not None:
                self.known[stage] = answer
        for tell in self.on_replaced:
            tell(stages, known)

    async def reached(self, weights: int, timeout: float) -> bool:
        """Whether the runtimes compute with this weight version, or a later one, within `timeout`
        seconds."""
        changed = asyncio.Event()

        def tell(*_: object) -> None:
            changed.set()

        self.on_replaced.append(tell)
        try:
            async with asyncio.timeout(timeout):
                while self.weights < weights:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self.on_replaced.remove(tell)
        return True

    def serving(self, shared: SharedByStages) -> Serving | None:
        """What serves it in a way of its own, None for one that is served by lanes. Raises
        `SwarmError`."""
        return None

    async def again(
        self,
        stage: int,
        tensors: dict[str, np.ndarray],
        steps: Mapping[str, str],
        weights: Mapping[str, Sequence[int]],
    ) -> Repeated:
        """What a stage makes of tensors, off the serving path. steps: of a run that is repeated,
        SHA-256 of what each step inside it made then, "" for one that was left out; {} where nobody
        knows. weights: by step, the weight versions that it was answered with; 0 where it is not
        there. Raises `SwarmError` and `shards.errors.ShardsError`."""
        return Repeated(await asyncio.to_thread(self.stages[stage].run, tensors))

    def close(self) -> None:
        for runtime in (*self.stages.values(), *self.local.values(), self.edge, self.lighter):
            if runtime is not None:
                runtime.close()


@dataclass(frozen=True)
class Loading:
    """A version that is to be loaded. stages: those that this node serves. fetch(name): a file of
    it, verified. changed(stage, change): tells that a stage computes on another device. started:
    `time.monotonic()` of its begin."""

    mesh: Mesh
    artifacts: NodeArtifacts
    config: NodeConfig
    info: ModelInfo
    manifest: Manifest
    stages: Sequence[int]
    fetch: Fetch
    changed: Callable[[int, DeviceChange], None]
    started: float


async def load(
    mesh: Mesh,
    artifacts: NodeArtifacts,
    config: NodeConfig,
    info: ModelInfo,
    *,
    edge: bool,
    lighter: bool,
    stages: Sequence[int] | None = None,
    urgent: bool = False,
    tell: Tell | None = None,
) -> Loaded:
    """Fetch, verify, load, self-test and warm, in a thread.

    stages: instead of all that this node serves; a standby goes by their order. urgent: at the
    normal priority. tell(kind, detail): publishes an event, such as a stage's change of device.
    Raises `SwarmError` (`NotFound`, `Unavailable` …) and `shards.errors.ShardsError`.
    """
    started = time.monotonic()
    manifest = Manifest.from_json(await mesh.registry.manifest(info.model, info.version))
    wanted = config.stages_of(info) if stages is None else stages
    with_edge = edge and info.edge is not None
    folders, fetch = await artifacts.folders(manifest), artifacts.fetcher(manifest)
    vault = await artifacts.vault(manifest)
    loop = asyncio.get_running_loop()

    def changed(number: int, change: DeviceChange) -> None:
        log.warning("stage %d computes on %s: %s", number, change.device, change.why)
        if tell is not None:
            detail = {"model": info.model, "version": info.version, "stage": number}
            detail |= {"device": change.device, "why": change.why}
            with contextlib.suppress(RuntimeError):  # the node has ended
                loop.call_soon_threadsafe(tell, "device", detail)

    parts = manifest.parts
    asked = Loading(mesh, artifacts, config, info, manifest, wanted, fetch, changed, started)
    if (prepare := first(lambda each: _at(each.loads, parts))) is not None:
        return await in_background(config, await prepare(asked), urgent)
    look = first(lambda each: _at(each.looks, parts)) if 1 in wanted else None
    looks = None if look is None else await look(asked)

    def stage(number: int, level: Level) -> StageRuntime:
        return load_stage(
            manifest,
            number,
            fetch,
            threads=config.threads,
            level=level,
            folders=folders,
            vault=vault,
            placement=config.placement,
            tell=partial(changed, number),
        )

    def what_fits() -> dict[int, StageRuntime]:
        """Of a standby, as many of its stages as this machine has memory for."""
        fits: dict[int, StageRuntime] = {}
        for number in wanted:
            try:
                fits[number] = stage(number, config.level)
            except DoesNotFit as error:
                if number == wanted[-1] and not fits:
                    raise
                log.warning("stage %d is not held: %s", number, error)
        return fits

    def at_hand() -> dict[int, StageRuntime]:
        """Of an edge that places its requests, the stages that it may compute itself: as many, from
        the first one on, as it has room for."""
        options = config.edge
        numbers = stages_held(options.placement, [each.stage for each in info.stages])
        held: dict[int, StageRuntime] = {}
        size = 0
        for number in numbers if edge else ():
            size += manifest.shard(number).bytes
            try:
                if 0 < options.placement_memory < size:
                    raise DoesNotFit(f"with stage {number} it holds more than --placement-memory")
                held[number] = stage(number, config.level)
            except DoesNotFit as error:
                if options.placement == EVERYTHING:
                    raise
                log.info("stages from %d on are not held here: %s", number, error)
                break
        return held

    def build() -> Loaded:
        if config.role == WARM:
            loaded = what_fits()
        else:
            loaded = {number: stage(number, config.level) for number in wanted}
        first = stage(EDGE, "all") if with_edge else None
        light = None
        if lighter:
            light = load_lighter(
                manifest, fetch, threads=config.threads, folders=folders, vault=vault
            )
        light_ms = light.warm() if light is not None else 0.0
        local = at_hand()
        seconds = time.monotonic() - started
        return Loaded(
            info,
            loaded,
            first,
            light,
            seconds,
            light_ms / 1e3,
            local=local,
            parts=manifest.parts,
            look=looks,
        )

    return await in_background(config, build, urgent)


def loads_otherwise(manifest: Manifest) -> bool:
    """Whether a feature loads such a version, in a way of its own."""
    return first(lambda each: _at(each.loads, manifest.parts)) is not None


def _at(loads: Mapping[str, T], parts: Iterable[str]) -> T | None:
    """What loads versions that have one of these parts."""
    return next((loads[part] for part in parts if part in loads), None)


async def in_background(config: NodeConfig, work: Callable[[], T], urgent: bool = False) -> T:
    """Return `work()` or raise its error, from a thread of low priority, unless it is urgent."""
    if urgent or config.threads > 1:
        # The runtime's own threads would inherit the low priority, for good.
        return await asyncio.to_thread(work)
    return await in_low_priority_thread(work)


async def learn_known(loaded: Loaded, config: NodeConfig, urgent: bool = False) -> None:
    """Keep each stage's answer to seeded input in `loaded.known`, for self-tests to compare with; a
    stage without layers has no answer. A run may take seconds: the event loop does not make it.
    Where one does not end in good time, the version serves without self-tests of its stages."""
    stages = {n: stage for n, stage in loaded.stages.items() if stage.runtime is not None}

    def run() -> dict[int, Known]:
        answers = {
            number: learned(stage, random_feeds(stage.shard.receives, seed=1))
            for number, stage in stages.items()
        }
        return {number: known for number, known in answers.items() if known is not None}

    if not stages:
        return
    usual = sum(stage.compute_ms for stage in stages.values()) / 1e3
    try:
        async with asyncio.timeout(KNOWN_WITHIN + KNOWN_FACTOR * usual):
            loaded.known = await in_background(config, run, urgent)
    except TimeoutError:
        info = loaded.info
        log.warning("%s@%s is not tested while it serves: a run hangs", info.model, info.version)
