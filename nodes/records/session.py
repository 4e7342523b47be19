"""A model version in this process, off the serving path: runs recorded requests again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nodes.config import NodeConfig
from nodes.features import first
from nodes.learned import learned_tensors
from nodes.meaning import AnswerMeaning
from nodes.records.recorded import Recorded
from nodes.stage.pictures import PictureReader
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.live_weights import NodeWeights
from nodes.versions.loaded import Loaded, Repeated, load
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, NotFound
from swarm.mesh import Mesh
from swarm.records.record import digest_of
from swarm.security.sealed import ModelKey

# How far two answers to one question are apart. Pure.


@dataclass(frozen=True, slots=True)
class Difference:
    """equal: bit by bit. deviation: the largest absolute difference of two values, infinite for
    tensors that cannot be compared (other names, datatypes or shapes), or where only one is NaN."""

    equal: bool
    deviation: float = 0.0


def compare(made: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray]) -> Difference:
    """Tensors that were made now beside those that were seen then."""
    if made.keys() != seen.keys():
        return Difference(False, math.inf)
    equal, deviation = True, 0.0
    for name, array in made.items():
        other = np.asarray(seen[name])
        if array.dtype != other.dtype or array.shape != other.shape:
            return Difference(False, math.inf)
        if array.tobytes() == other.tobytes():
            continue
        equal = False
        deviation = max(deviation, _deviation(array, other))
    return Difference(equal, deviation)


def _deviation(one: np.ndarray, other: np.ndarray) -> float:
    a, b = one.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bool(same.all()):
        return 0.0  # other bits of equal values: -0.0, another NaN
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)[~same]
    return math.inf if bool(np.isnan(apart).any()) else float(apart.max())


def decides_otherwise(made: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray]) -> bool:
    """Whether the largest value of a row stands elsewhere, in an output that both have: another
    class is chosen. Rows lie along the last axis."""
    for name, array in made.items():
        other = seen.get(name)
        if other is None or array.ndim == 0 or array.shape != other.shape or array.shape[-1] < 2:
            continue
        if array.size and not np.array_equal(array.argmax(-1), np.asarray(other).argmax(-1)):
            return True
    return False


Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RepeatedStage:
    """One stage, run again, or the step `part` inside its run. node: that ran it then. difference:
    None where what it made then was not recorded. seconds: of the run now."""

    stage: int
    node: str
    difference: Difference | None
    seconds: float
    part: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """One request, run again. version: that it was run with now. otherwise: whether another class
    is chosen, or other objects, None where there is no answer to compare with. note: why a step is
    missing. found: what the answer of now says, where the model has a task; boxes are shares of the
    model's own picture."""

    id: str
    at: float
    version: str
    weights: int
    steps: tuple[RepeatedStage, ...]
    otherwise: bool | None = None
    note: str = ""
    found: AnswerMeaning | None = None

    @property
    def compared(self) -> int:
        """Steps that could be compared."""
        return sum(step.difference is not None for step in self.steps)

    def equal(self, tolerance: float) -> bool:
        """Whether at least one step was compared, and none deviates by more than `tolerance`
        (0: bit by bit)."""
        differences = [step.difference for step in self.steps if step.difference is not None]
        return bool(differences) and all(
            d.equal or 0 < d.deviation <= tolerance for d in differences
        )


class ReplaySession:
    """One model version's stages. Create with `open`, end with `close`."""

    def __init__(self, loaded: Loaded, weights: NodeWeights, mesh: Mesh) -> None:
        self._loaded = loaded
        self._weights = weights
        self._mesh = mesh

    @classmethod
    async def open(
        cls, mesh: Mesh, model: str, version: str, key: ModelKey | None = None
    ) -> ReplaySession:
        """Load all stages of a version, as nodes do. key: opens an encrypted model. Raises
        `NotFound`, `Unavailable`, and `shards.errors.ShardsError`."""
        config = NodeConfig("fallback", f"{model}@{version}", device="cpu")
        artifacts = NodeArtifacts(mesh.registry, config.cache_folder, config.cache_limit, key)
        info = await mesh.registry.info(model, version)
        loaded = await load(mesh, artifacts, config, info, edge=False, lighter=False, urgent=True)
        weights = NodeWeights(mesh, artifacts, config)
        weights.add(loaded)
        return cls(loaded, weights, mesh)

    @property
    def version(self) -> str:
        """The version that is loaded."""
        return self._loaded.info.version

    def read(self, outputs: Mapping[str, np.ndarray]) -> AnswerMeaning | None:
        """What the model's outputs say; None where its version does not say what they mean. The
        picture as it was captured is not known here, so boxes are shares of the model's own."""
        info = self._loaded.info
        try:
            meaning = first(lambda feature: feature.meaning(info))
            return None if meaning is None else meaning.read(outputs)
        except ShardsError:
            return None

    @property
    def last(self) -> int:
        """The number of the last stage."""
        return self._loaded.info.last

    async def use_weights(self, n: int) -> None:
        """Compute with weight version `n`, which is not lower than the last one asked for. Raises
        `NotFound` where it is not kept any more, and what `NodeWeights.take` raises."""
        info = self._loaded.info
        if n == self._weights.present(info.model, info.version):
            return
        tensors = await learned_tensors(self._mesh, info, n)
        await self._weights.take(info.model, info.version, n, tensors)

    async def run(
        self,
        stage: int,
        tensors: Mapping[str, np.ndarray],
        then: Recorded | None = None,
    ) -> tuple[Repeated, float]:
        """What a stage makes of these tensors, and its seconds. then: as of `through`. Raises
        `SwarmError`, `ShardsError`, and `InvalidArgument` for a picture that is none, or that
        nobody here can decode."""
        pictures, given = PictureReader(self._loaded.info), dict(tensors)
        began = time.perf_counter()
        if stage == 1 and pictures.comes_as_picture(given):
            given = await asyncio.to_thread(pictures.decoded, given)
        steps, weights = (then.steps(stage), then.weights_of(stage)) if then else ({}, {})
        made = await self._loaded.again(stage, given, steps, weights)
        return made, time.perf_counter() - began

    async def through(
        self, tensors: Mapping[str, np.ndarray], then: Recorded | None = None
    ) -> list[tuple[Tensors, float]]:
        """What each stage makes, one behind the other, from stage 1 on. then: the request that is
        repeated with its own version."""
        made: list[tuple[Tensors, float]] = []
        for stage in range(1, self.last + 1):
            repeated, seconds = await self.run(stage, made[-1][0] if made else tensors, then)
            made.append((repeated.outputs, seconds))
        return made

    def close(self) -> None:
        """Free the runtimes."""
        self._loaded.close()


async def replay_same(session: ReplaySession, request: Recorded) -> Replay:
    """Run each stage on what came to it then, and compare with what came to the next one: a
    deviation is told of the very stage that makes it. The last stage's answer, and what the steps
    inside of a run made, are compared by their hashes in the audit."""
    await session.use_weights(request.weights)
    if request.cached_ms is not None and 1 in request.stages:
        return await _replay_kept(session, request, request.cached_ms)
    steps = []
    found: AnswerMeaning | None = None
    for stage, came in request.stages.items():
        told = request.steps(stage)
        repeated, seconds = await session.run(stage, came.tensors, request)
        made = repeated.outputs
        for part, digest in told.items():
            equal = _digest(repeated.steps.get(part)) == digest
            difference = Difference(equal, 0.0 if equal else math.inf)
            steps.append(RepeatedStage(stage, "", difference, 0.0, part))
        behind = request.stages.get(stage + 1)
        whole: Difference | None = None
        if behind is not None:
            whole = compare(made, behind.tensors)
        elif stage == session.last and request.output:
            equal = digest_of(made) == request.output
            whole = Difference(equal, 0.0 if equal else float("inf"))
        if stage == session.last:
            found = session.read(made)
        steps.append(RepeatedStage(stage, request.node(stage), whole, seconds))
    note = why_incomplete(request, session.last)
    return Replay(
        request.id,
        request.at,
        session.version,
        request.weights,
        tuple(steps),
        note=note,
        found=found,
    )


async def _replay_kept(session: ReplaySession, request: Recorded, age: int) -> Replay:
    """Run all stages for a question whose answer stage 1 had kept, and compare with that: what
    stages behind the first one received then was another request's."""
    made = await session.through(request.stages[1].tensors, request)
    equal = digest_of(made[-1][0]) == request.output
    whole = Difference(equal, 0.0 if equal else math.inf) if request.output else None
    steps = tuple(
        RepeatedStage(stage, request.node(stage), whole if stage == session.last else None, seconds)
        for stage, (_, seconds) in enumerate(made, start=1)
    )
    note = f"its answer was {age} ms old, kept at stage 1: all stages have computed it here"
    found = session.read(made[-1][0])
    return Replay(
        request.id, request.at, session.version, request.weights, steps, note=note, found=found
    )


def _digest(made: Mapping[str, np.ndarray] | None) -> str:
    """As an audit has it; "" for what was not made."""
    return digest_of(made) if made is not None else ""


def why_incomplete(request: Recorded, last: int) -> str:
    """Why some stage of a request cannot be compared; "" where each can. last: the last stage."""
    reasons = []
    if missing := [stage for stage in range(1, last + 1) if stage not in request.stages]:
        reasons.append(f"stages not recorded: {', '.join(map(str, missing))}")
    if last in request.stages and not request.output:
        reasons.append(f"stage {last} has nothing to be compared with: only an audit keeps answers")
    if request.kept:
        parts = ", ".join(request.kept)
        reasons.append(f"answers of parts were kept ones, which were computed here: {parts}")
    return "; ".join(reasons)


async def replay_other(session: ReplaySession, then: ReplaySession, request: Recorded) -> Replay:
    """Run another version from the question on, beside the version of then, whose answer is not
    recorded but comes from the same weights. Cuts of equal tensors are compared too.

    Raises `NotFound` where the question was not recorded.
    """
    first = request.stages.get(1)
    if first is None:
        raise NotFound(f"{request.id}: its question was not recorded; a longer recording has it")
    await then.use_weights(request.weights)
    made = await session.through(first.tensors)
    answer = (await then.through(first.tensors, request))[-1][0]
    steps = []
    for stage, (tensors, seconds) in enumerate(made, start=1):
        behind = request.stages.get(stage + 1)
        difference: Difference | None = None
        if stage == session.last:
            difference = compare(tensors, answer)
        elif behind is not None and _alike(tensors, behind.tensors):
            difference = compare(tensors, behind.tensors)
        steps.append(RepeatedStage(stage, "", difference, seconds))
    found, before = session.read(made[-1][0]), then.read(answer)
    if found is not None and before is not None:
        otherwise = not found.decides_as(before)
    else:
        otherwise = decides_otherwise(made[-1][0], answer)
    return Replay(request.id, request.at, session.version, 0, tuple(steps), otherwise, found=found)


async def replay_each(
    chosen: Sequence[Recorded], one: Callable[[Recorded], Awaitable[Replay]], version: str = ""
) -> list[Replay]:
    """The replay of each request, oldest first. One that cannot be run is none of the others' end:
    a picture that is none, tensors that a stage does not take or fails on, a question or weights
    that were not kept; its note says so. version: that requests are run with, "" for their own.
    A single request's `NotFound` is raised."""
    replays = []
    for each in sorted(chosen, key=lambda each: each.weights):  # weight versions only grow
        try:
            replays.append(await one(each))
        except (InvalidArgument, NotFound, ShardsError) as error:
            if len(chosen) == 1 and isinstance(error, NotFound):
                raise
            now, note = version or each.version, str(error)
            replays.append(Replay(each.id, each.at, now, each.weights, (), note=note))
    return sorted(replays, key=lambda replay: (replay.at, replay.id))


def _alike(made: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray]) -> bool:
    """Whether two cuts have the same tensors: versions may be cut elsewhere."""
    return made.keys() == seen.keys() and all(made[n].shape == seen[n].shape for n in made)
