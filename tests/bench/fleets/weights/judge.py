"""Whether answers are, bit by bit, the whole model's with the weights that their hops name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from bench.fleets.weights.updates import Tensors

from shards.graph.fuse import fuse
from shards.graph.source import read_model
from shards.runtimes.ort import make_session
from shards.weights.head import find_head
from shards.weights.onnx_file import OnnxFile


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
        held: Tensors = {}
        if n == 0:
            session = make_session(model, level="basic")
        else:
            changed = changes(n)
            held = {name: changed.get(name, file.weight(name)) for name in head}
            inside = {name: array for name, array in changed.items() if name not in held}
            session = make_session(file.rewritten(values=inside, as_inputs=head), level="basic")
        expected: dict[int, bytes] = {}
        for answer in group:
            if answer.index not in expected:
                row = {k: v[answer.index : answer.index + 1] for k, v in inputs.items()}
                outputs: list[np.ndarray] = session.run(None, row | held)
                expected[answer.index] = outputs[0].tobytes()
            torn += answer.values != expected[answer.index]
    return torn
