"""Weights that are replaced while a stage serves: a second session beside the one that runs.

A *weight version* is a number for the weights of a stage: 0 for the artifact's own, a higher one
for the artifact's with some tensors replaced. Each version of a stage is a `StageRuntime` of its
own. Who serves takes the new object from the next run on; runs under way end on the old one, and
its memory goes with the last of them.

    head only     the head's weights are inputs of the graph, all others lie in the session:
                  a new version is another set of inputs, on the same session
    any tensor    weights lie outside a *skeleton* of some kilobytes, and are handed to each
                  new session
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shards.errors import DeltaError, DeltaFault, ModelError, ShardsError
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.runtime import Runtime, maker_of
from shards.runtimes.stage import StageRuntime
from shards.runtimes.synthetic import TOLERANCE, random_feeds
from shards.weights.delta import check_values
from shards.weights.head import find_head
from shards.weights.master import MasterWeights
from shards.weights.onnx_file import OnnxFile

# Bytes. A smaller tensor stays in the skeleton: optimisation may need to read it as a constant.
_LEAST_OUTSIDE = 128

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class WeightsTrial:
    """All that a stage receives, and what it sends then."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


class LiveWeights:
    """The changing weights of one stage. Blocking, and not thread-safe: one thread at a time.

    `specs` are the names, datatypes and shapes of the stage's weights. `trial` is what the last
    version gave for synthetic input, None where the stage does not run on it. Memory: the head's
    weights alone while only these change; a copy of all weights (`MasterWeights`) from the first
    change of another tensor on; and the session that the last version uses.
    """

    def __init__(
        self, stage: StageRuntime, artifact: bytes | memoryview, *, tolerance: float = TOLERANCE
    ) -> None:
        """`stage` is the loaded stage, whose settings its later versions get; `artifact` is its
        verified file, which is not kept. `tolerance` is that of the self-test.

        Raises ModelError for a stage without layers, or of a runtime whose weights cannot change.
        """
        maker = maker_of(stage.runtime)
        if maker is None:
            raise ModelError(f"stage {stage.shard.stage} has no weights that could change")
        file = OnnxFile(artifact)
        self.specs = dict(file.specs)
        self._shard = stage.shard
        self._batchable = stage.batchable
        self._compute_ms = stage.compute_ms
        self._make: Callable[..., OrtRuntime] = maker()
        self._tolerance = tolerance
        self._head = {name: file.weight(name) for name in _head_names(artifact)}  # the artifact's
        self._outside = [
            name
            for name, spec in self.specs.items()
            if spec.nbytes >= _LEAST_OUTSIDE and name not in self._head
        ]
        self._master: MasterWeights | None = None  # the artifact's weights
        self._skeleton = b""
        self._is_tested = False
        # The last version that got a session: its runtime, and the digest of the weights inside.
        self._runtime: OrtRuntime | None = None
        self._inside = ""
        self.trial: WeightsTrial | None = None

    def needs_artifact(self, tensors: Tensors) -> bool:
        """Whether `with_weights` of these tensors has to read the artifact."""
        mine = [name for name in tensors if name in self.specs]
        if any(name not in self._head for name in mine):
            return self._master is None
        return bool(mine) and self._runtime is None

    def needs_session(self, tensors: Tensors) -> bool:
        """Whether `with_weights` of these tensors builds a new session, which takes a while."""
        mine = [name for name in tensors if name in self.specs]
        if any(name not in self._head for name in mine):
            return True
        if self._runtime is None:
            return bool(mine)
        return self._inside != _digest({})

    def with_weights(
        self,
        n: int,
        tensors: Tensors,
        present: StageRuntime,
        artifact: bytes | memoryview | None = None,
    ) -> StageRuntime:
        """Weight version `n`: the artifact's weights, but for these `tensors`.

        `tensors` that other stages hold are passed over. `present` is the version that serves; it
        stays as it is. `artifact` is needed where `needs_artifact` says so. The new version has run
        on synthetic input. Raises DeltaError for tensors that do not fit, are not finite, or make
        results that are not finite; ModelError where ONNX Runtime refuses the model, or the
        self-test fails.
        """
        mine = {name: array for name, array in tensors.items() if name in self.specs}
        check_values(mine, self.specs)
        if self._runtime is None and not mine:
            return present.numbered(n)  # still the artifact's weights
        head = {name: np.array(mine.get(name, base)) for name, base in self._head.items()}
        inside = {name: array for name, array in mine.items() if name not in head}
        digest = _digest(inside)
        if self._runtime is not None and digest == self._inside:
            runtime = self._runtime.holding(head)
        else:
            runtime = self._new_session(inside, head, artifact)
        stage = self._stage(n, runtime)
        self.trial = self._tried(stage, runtime, present)
        self._runtime, self._inside = runtime, digest
        return stage

    def _new_session(
        self, inside: Tensors, head: Tensors, artifact: bytes | memoryview | None
    ) -> OrtRuntime:
        """The first one's optimisation is compared with the plain model. It depends on the graph,
        which stays the same, and not on the values of weights."""
        weights: dict[str, np.ndarray] = {}
        if inside or self._master is not None:
            model, weights = self._filled_skeleton(inside, artifact)
        else:
            model = OnnxFile(_given(artifact)).rewritten(as_inputs=head)
        runtime = self._make(model, weights=weights, held=head)
        if not self._is_tested:
            runtime.self_test(tolerance=self._tolerance)
            self._make = runtime.maker()  # at the optimisation level that the test left
            self._is_tested = True
        runtime.release_model()
        return runtime

    def _filled_skeleton(
        self, inside: Tensors, artifact: bytes | memoryview | None
    ) -> tuple[bytes, dict[str, np.ndarray]]:
        """The skeleton, and the weights that are outside it."""
        if self._master is None:
            file = OnnxFile(_given(artifact))
            self._skeleton = file.rewritten(outside=self._outside, as_inputs=self._head)
            self._master = MasterWeights.of(_given(artifact), self._shard.sha256)
        master = self._master.replace(inside)
        outside = {name: master.get(name) for name in self._outside}
        small = {name: master.get(name) for name in inside if name not in outside}
        return OnnxFile(self._skeleton).rewritten(values=small), outside

    def _tried(
        self, stage: StageRuntime, runtime: OrtRuntime, present: StageRuntime
    ) -> WeightsTrial | None:
        """A run on synthetic input. Raises DeltaError where its results are not finite, ModelError
        where it fails."""
        inputs = {**random_feeds(self._shard.receives), **runtime.synthetic()}
        n = stage.weights_version
        try:
            outputs = stage.run(inputs)
        except ShardsError as error:
            # Some models take no synthetic input, for example an index out of range. Then the
            # present version does not run on it either.
            if _runs(present, inputs):
                raise ModelError(f"weight version {n} fails on synthetic input: {error}") from error
            return None
        for name, array in outputs.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                fault = f"weight version {n} makes {name!r} infinite, or no number"
                raise DeltaError(DeltaFault.RESULT, fault)
        return WeightsTrial(inputs, outputs)

    def _stage(self, n: int, runtime: Runtime) -> StageRuntime:
        return StageRuntime(
            self._shard,
            runtime,
            batchable=self._batchable,
            compute_ms=self._compute_ms,
            weights_version=n,
        )


def _head_names(artifact: bytes | memoryview) -> tuple[str, ...]:
    try:
        return find_head(artifact).names
    except ModelError:
        return ()  # a stage that has none: all its weights lie in its sessions


def _given(artifact: bytes | memoryview | None) -> bytes | memoryview:
    if artifact is None:
        raise ModelError("a new session needs the stage's artifact")
    return artifact


def _digest(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}\0".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def _runs(stage: StageRuntime, inputs: Tensors) -> bool:
    """Whether a stage runs on this input."""
    try:
        stage.run(inputs)
    except ShardsError:
        return False
    return True
