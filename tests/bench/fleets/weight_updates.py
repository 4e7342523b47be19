"""The weight versions of the benchmark: the same in the node that takes them and in the judge.

Version n of a stage is its artifact's weights with a change that is drawn from n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from shards.graph.fuse import fuse
from shards.graph.source import read_model
from shards.runtimes.ort import make_session
from shards.weights.delta import SparseTensor, WeightDelta
from shards.weights.head import find_head
from shards.weights.master import MasterWeights
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_model

SHARE = 100  # one value in so many changes
STEP = 0.01  # standard deviation of a change
CONVOLUTIONS = 3  # of the stage's last ones: a residual block

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model in `stages`, whose last stage learns. changes(file, n): tensors of version n."""

    name: str
    build: Callable[[], bytes]
    stages: int
    changes: Callable[[bytes, int], Tensors]


def changed_head(artifact: bytes, n: int) -> Tensors:
    """Another head: all of its values."""
    file, head = OnnxFile(artifact), find_head(artifact)
    random = np.random.default_rng(n)
    return {name: file.weight(name) + _steps(random, file.specs[name].shape) for name in head.names}


def changed_block(artifact: bytes, n: int) -> Tensors:
    """One value in a hundred of the last convolutions, by a sparse delta."""
    file = OnnxFile(artifact)
    names = [name for name, spec in file.specs.items() if len(spec.shape) == 4][-CONVOLUTIONS:]
    specs = {name: file.specs[name] for name in names}
    master = MasterWeights("base", specs, {name: file.weight(name) for name in names})
    random = np.random.default_rng(n)
    delta = {}
    for name in names:
        size = master.get(name).size
        places = np.unique(random.integers(0, size, size // SHARE, dtype=np.uint32))
        values = _steps(random, places.shape)
        delta[name] = SparseTensor(places, values, specs[name].shape)
    changed = master.apply(WeightDelta("base", delta))
    return {name: changed.get(name) for name in names}


def _steps(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape, np.float32) * np.float32(STEP)


def _resnet50() -> bytes:
    from zoo.builders import resnet50

    return resnet50()


CASES = {
    case.name: case
    for case in (
        Case("digits", digits_model, 3, changed_head),
        Case("resnet50", _resnet50, 2, changed_block),
    )
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: to which input, with which weight version by its last hop, and its values."""

    index: int
    weights: int
    values: bytes


def count_torn(
    model: bytes, inputs: Tensors, changes: Callable[[int], Tensors], answers: Iterable[Answer]
) -> int:
    """Answers that differ from the whole model's by any bit, at the basic optimisation level.

    inputs: by name, one row a request. changes(n): the tensors of weight version n. A head that is
    learned is an input of the whole model too: the runtime packs weights that it knows, and adds up
    in another order than with weights that it does not know.
    """
    by_version: dict[int, list[Answer]] = {}
    for answer in answers:
        by_version.setdefault(answer.weights, []).append(answer)
    file = OnnxFile(fuse(read_model(model)[0]).SerializeToString())
    head = find_head(file.rewritten()).names
    torn = 0
    for n, group in sorted(by_version.items()):
        head_values: Tensors = {}
        if n == 0:
            session = make_session(model, level="basic")
        else:
            changed = changes(n)
            head_values = {name: changed.get(name, file.weight(name)) for name in head}
            inside = {name: array for name, array in changed.items() if name not in head_values}
            session = make_session(file.rewritten(values=inside, as_inputs=head), level="basic")
        expected: dict[int, bytes] = {}
        for answer in group:
            if answer.index not in expected:
                row = {k: v[answer.index : answer.index + 1] for k, v in inputs.items()}
                outputs: list[np.ndarray] = session.run(None, row | head_values)
                expected[answer.index] = outputs[0].tobytes()
            torn += answer.values != expected[answer.index]
    return torn
