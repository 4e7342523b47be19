"""The pipelines of `swarm bench throughput`: real models, split by measured times.

A pipeline's folder holds the manifest and the stages' files, for the mesh, and the unsplit model,
for the floors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.rivals.ultraface import ultraface_file
from bench.rivals.workload import WHOLE_FILE, Spec, Workload
from shards.manifest import TensorSpec, write_dir
from shards.runtimes.ort import make_session
from shards.split.split import split

INPUT_FILE, EXPECTED_FILE = "input.npz", "expected.npz"
Tensors = dict[str, np.ndarray]


def _digits() -> tuple[bytes, Tensors]:
    from shards.zoo import digits_heldout, digits_model

    images, _ = digits_heldout()
    return digits_model(), {"image": np.ascontiguousarray(images[:1])}


def _resnet50(width: float = 1.0) -> tuple[bytes, Tensors]:
    from zoo.builders import resnet50

    image = np.random.default_rng(3).standard_normal((1, 3, 224, 224), dtype=np.float32)
    return resnet50(224, width), {"image": image}


def _resnet50_small() -> tuple[bytes, Tensors]:
    return _resnet50(0.25)


def _ultraface(path: str = "") -> tuple[bytes, Tensors]:
    data = ultraface_file(path).read_bytes()
    (entry,) = make_session(data).get_inputs()
    shape = [dim if isinstance(dim, int) else 1 for dim in entry.shape]
    image = np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)
    return data, {entry.name: image}


PIPELINES: dict[str, Callable[[], tuple[bytes, Tensors]]] = {
    "digits": _digits,
    "resnet50": _resnet50,
    "resnet50-small": _resnet50_small,
    "ultraface": _ultraface,
}


@dataclass(frozen=True)
class Pipeline:
    """A model that was split, and its workload."""

    name: str
    workload: Workload
    compute_ms: float
    """The sum of the stages' measured times."""
    cut_bytes: list[int]
    """Bytes of features that cross each cut."""


def build_pipeline(name: str, directory: Path, stages: int, ultraface: str = "") -> Pipeline:
    """Split model `name` of `PIPELINES` into a new folder. Raises `KeyError`, `NoModel`."""
    model, inputs = _ultraface(ultraface) if name == "ultraface" else PIPELINES[name]()
    # Loopback: compute decides the cuts, not the link.
    result = split(model, name=name, stages=stages, example=inputs, bandwidth=1e6)
    manifest = result.manifest
    write_dir(directory, manifest, result.files)
    (directory / WHOLE_FILE).write_bytes(model)
    session = make_session(model)
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    np.savez(directory / INPUT_FILE, **inputs)  # type: ignore[arg-type]
    np.savez(directory / EXPECTED_FILE, **expected)
    shards = [shard for shard in manifest.shards if shard.stage > 0]
    workload = Workload(
        directory=directory.resolve(),
        kind=name,
        in_flight=4,
        inputs=tuple(_specs(shard.receives) for shard in shards),
        outputs=tuple(_specs(shard.sends) for shard in shards),
        input=inputs,
        expected=expected,
    )
    return Pipeline(
        name, workload, sum(shard.compute_ms for shard in shards), workload.feature_bytes
    )


def _specs(items: tuple[TensorSpec, ...]) -> tuple[Spec, ...]:
    return tuple(
        Spec(i.name, i.dtype.name, tuple(1 if dim == -1 else dim for dim in i.shape)) for i in items
    )
