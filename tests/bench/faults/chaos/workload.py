"""The model of a run, inputs for it, and the whole model's answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo
from swarm.wire.tensors import DTYPES

DIGITS = "digits"
STAGES = 3
DRAWN_INPUTS = 8  # for a model of whose inputs only names and shapes are known
TOLERANCE = 1e-4  # of an output's largest value: shards and whole are optimised apart

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """A split model; its inputs, which are asked in turn; the whole model's outputs for each."""

    model: SplitResult
    inputs: list[Tensors]
    expected: list[Tensors]

    def is_right(self, index: int, outputs: Tensors) -> bool:
        """Whether these are the outputs of request `index`, within `TOLERANCE`."""
        expected = self.expected[index % len(self.expected)]
        return outputs.keys() == expected.keys() and all(
            _is_near(outputs[name], value) for name, value in expected.items()
        )


def _is_near(value: np.ndarray, expected: np.ndarray) -> bool:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return False
    error = np.abs(value.astype(np.float64) - expected)
    return bool(error.max(initial=0.0) <= TOLERANCE * np.abs(expected).max(initial=1.0))


def make_workload(model: str, seed: int) -> Workload:
    """Split `digits`, or an ONNX file, in three, and ask the whole model.

    seed: of the inputs of a file, uniform between 0 and 1, with free dimensions at 1.
    Raises `InvalidArgument` for a missing file and for a model whose inputs are no FP32 tensors.
    """
    data = digits_model() if model == DIGITS else _read(model)
    name = DIGITS if model == DIGITS else "chaos"
    result = split(data, name=name, stages=STAGES)
    if model == DIGITS:
        images = digits_heldout()[0]
        inputs: list[Tensors] = [{"image": images[i : i + 1]} for i in range(len(images))]
    else:
        inputs = _drawn(ModelInfo.from_manifest(result.manifest.to_json()), seed)
    whole = OrtRuntime(data)
    # One at a time, as the mesh runs them.
    expected: list[Tensors] = [dict(whole.run(one)) for one in inputs]
    whole.close()
    return Workload(result, inputs, expected)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"--model {path}: {error}; it is digits or an ONNX file") from None


def _drawn(info: ModelInfo, seed: int) -> list[Tensors]:
    others = [spec.name for spec in info.inputs if spec.datatype != "FP32"]
    if others:
        raise InvalidArgument(f"input {others[0]!r} is not FP32: inputs are drawn for FP32 only")
    rng = np.random.default_rng(seed)
    return [
        {
            spec.name: rng.random([max(1, d) for d in spec.shape], dtype=DTYPES["FP32"].type)
            for spec in info.inputs
        }
        for _ in range(DRAWN_INPUTS)
    ]
