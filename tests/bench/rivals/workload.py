"""A workload: the stages of one model as files, one input, and the outputs to expect.

A directory holds ``stage-1.onnx`` ... ``stage-n.onnx``, ``whole.onnx`` (the model before it was
cut), ``input.npz``, ``expected.npz`` and ``meta.json``::

    {"v": 1, "kind": "tiny", "in_flight": 16,
     "stages": [{"inputs": [{"name", "dtype", "shape"}], "outputs": [...]}, ...]}

The outputs of a stage are exactly the inputs of the next one, in the same order. Any model's
shards can be laid out like this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

Tensors = dict[str, np.ndarray]

WHOLE_FILE = "whole.onnx"

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-3, 1e-4
"""How far an answer may be from the expected one: they cover only another order of summation in
the fused, unsplit network."""


class WrongAnswer(RuntimeError):
    """A contender's answer is not the expected one: its times mean nothing."""


@dataclass(frozen=True)
class Spec:
    """Name, dtype and fixed shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Workload:
    """A workload directory, read and checked.

    in_flight: requests that are under way at once where many are asked together. inputs, outputs:
    the tensors of each stage. input: one request; expected: the answer to it.
    """

    directory: Path
    kind: str
    in_flight: int
    inputs: tuple[tuple[Spec, ...], ...]
    outputs: tuple[tuple[Spec, ...], ...]
    input: Tensors
    expected: Tensors

    @property
    def stages(self) -> int:
        return len(self.inputs)

    @property
    def feature_bytes(self) -> list[int]:
        """Bytes that cross each cut between two stages."""
        return [sum(spec.nbytes for spec in specs) for specs in self.outputs[:-1]]

    @property
    def whole(self) -> Path:
        """The file of the model before it was cut."""
        return self.directory / WHOLE_FILE

    @property
    def cuts(self) -> list[str]:
        """The tensor that crosses each cut; empty where a cut has several tensors."""
        names = [specs[0].name for specs in self.outputs[:-1] if len(specs) == 1]
        return names if len(names) == self.stages - 1 else []

    @property
    def largest(self) -> int:
        """Bytes of the largest payload of a request, the input included."""
        return max(sum(spec.nbytes for spec in specs) for specs in (*self.inputs, self.outputs[-1]))

    @classmethod
    def load(cls, directory: Path | str) -> Workload:
        """Read a workload directory.

        Raises ``ValueError`` when the stages do not form a chain or the arrays do not fit it.
        """
        directory = Path(directory).resolve()
        meta = json.loads((directory / "meta.json").read_text())
        inputs = tuple(_specs(stage["inputs"]) for stage in meta["stages"])
        outputs = tuple(_specs(stage["outputs"]) for stage in meta["stages"])
        for number, (left, right) in enumerate(zip(outputs, inputs[1:], strict=False), 1):
            if left != right:
                raise ValueError(f"stage {number} gives {left}, stage {number + 1} takes {right}")
        with np.load(directory / "input.npz") as arrays:
            given = {spec.name: _checked(arrays[spec.name], spec) for spec in inputs[0]}
        with np.load(directory / "expected.npz") as arrays:
            expected = {spec.name: _checked(arrays[spec.name], spec) for spec in outputs[-1]}
        return cls(directory, meta["kind"], meta["in_flight"], inputs, outputs, given, expected)

    def mismatch(self, outputs: Mapping[str, np.ndarray]) -> str | None:
        """Why ``outputs`` are not the expected ones, or ``None`` when they are."""
        if set(outputs) != set(self.expected):
            return f"outputs {sorted(outputs)}, expected {sorted(self.expected)}"
        for name, expected in self.expected.items():
            got = np.asarray(outputs[name])
            if got.dtype != expected.dtype or got.shape != expected.shape:
                return f"{name}: {got.dtype}{got.shape}, not {expected.dtype}{expected.shape}"
            if not close(got, expected):
                return f"{name}: differs by up to {np.abs(got - expected).max():.3g}"
        return None

    def check(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Raises `WrongAnswer` unless these are the expected outputs."""
        mismatch = self.mismatch(outputs)
        if mismatch:
            raise WrongAnswer(f"wrong output: {mismatch}")


def close(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays of one shape agree within the tolerances."""
    return np.allclose(got, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)


def pack(tensors: Mapping[str, np.ndarray], specs: Sequence[Spec]) -> bytes | memoryview:
    """The raw bytes of ``tensors`` in the order of ``specs``; a single tensor is not copied."""
    arrays = [np.ascontiguousarray(tensors[spec.name]) for spec in specs]
    if len(arrays) == 1:
        return arrays[0].data.cast("B")
    return b"".join(array.data.cast("B") for array in arrays)


def unpack(data: bytes | bytearray | memoryview, specs: Sequence[Spec]) -> Tensors:
    """The opposite of :func:`pack`: arrays that share memory with ``data``.

    Raises ``ValueError`` when ``data`` has another length than ``specs`` ask for.
    """
    view = memoryview(data)
    if view.nbytes != sum(spec.nbytes for spec in specs):
        raise ValueError(f"{view.nbytes} bytes for {specs}")
    tensors: Tensors = {}
    offset = 0
    for spec in specs:
        count = math.prod(spec.shape)
        array = np.frombuffer(view, dtype=spec.dtype, count=count, offset=offset)
        tensors[spec.name] = array.reshape(spec.shape)
        offset += spec.nbytes
    return tensors


def _specs(items: Sequence[Mapping[str, object]]) -> tuple[Spec, ...]:
    specs = []
    for item in items:
        shape = item["shape"]
        assert isinstance(shape, list)
        specs.append(Spec(str(item["name"]), str(item["dtype"]), tuple(int(d) for d in shape)))
    return tuple(specs)


def _checked(array: np.ndarray, spec: Spec) -> np.ndarray:
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise ValueError(f"{spec.name}: {array.dtype}{array.shape} does not fit {spec}")
    return array


if TYPE_CHECKING:
    from shards.manifest import TensorSpec
    from shards.split.split import SplitResult


def write_split(
    directory: Path,
    model: bytes,
    result: SplitResult,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    in_flight: int,
) -> Workload:
    """Write the stages of a split, and the model before it, as a workload for batch 1.

    in_flight: requests that are under way at once where a contender is asked for many together.
    Raises `ValueError` when a stage has carried tensors or no layers: every contender runs a plain
    chain of sessions. Dynamic dimensions become those that the split was proved with
    (`extra["examples"]`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    manifest = result.manifest
    shapes: dict[str, list[int]] = manifest.extra.get("examples", {})

    def spec(item: TensorSpec) -> dict[str, object]:
        shape = [1 if dim == -1 else dim for dim in item.shape]
        return {
            "name": item.name,
            "dtype": item.dtype.name,
            "shape": shapes.get(item.name, shape) if -1 in item.shape else shape,
        }

    stages = []
    following = None
    for shard in manifest.shards:
        if shard.carries or not shard.file or shard.stage == 0:
            raise ValueError(f"stage {shard.stage} is not a plain session of its own")
        (directory / f"stage-{shard.stage}.onnx").write_bytes(result.files[shard.file])
        # The next stage takes what this one gives, in the same order.
        takes = following or [spec(item) for item in shard.receives]
        following = [spec(item) for item in shard.sends]
        stages.append({"inputs": takes, "outputs": following})
    (directory / WHOLE_FILE).write_bytes(model)
    np.savez(directory / "input.npz", **inputs)  # type: ignore[arg-type]
    np.savez(directory / "expected.npz", **expected)  # type: ignore[arg-type]
    meta = {"v": 1, "kind": manifest.model, "in_flight": in_flight, "stages": stages}
    (directory / "meta.json").write_text(json.dumps(meta))
    return Workload.load(directory)
