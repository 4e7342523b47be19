"""Versions of the digits model, each of whose layers differs from those of the others.

A request whose stages are of two versions has an answer that no version gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from support.meshes import LOOPBACK, whole

from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model

STAGES = 3
IMAGES = 64  # different requests
TOLERANCE = 1e-4  # of the largest logit
# By version: how far the logarithm of each weight's size moves, at random; no sign changes, so that
# a variance stays one. Version 3 is another network.
MOVED = {"1": 0.0, "2": 0.005, "3": 1.5}


@dataclass(frozen=True)
class Version:
    """A version, split; logits: what the whole of it answers, [IMAGES, 10]."""

    split: SplitResult
    logits: np.ndarray


def images() -> np.ndarray:
    """The requests' inputs, [IMAGES, 1, 8, 8]."""
    return digits_heldout()[0][:IMAGES]


def make_versions() -> dict[str, Version]:
    """All versions, with the same cuts."""
    return {version: _version(version, moved) for version, moved in MOVED.items()}


def _version(version: str, moved: float) -> Version:
    model = _moved(digits_model(), int(version), moved)
    result = split(
        model,
        name="digits",
        version=version,
        stages=STAGES,
        bandwidth=LOOPBACK,
        profile=False,
    )
    rows = whole(model, [{"image": image[None]} for image in images()])
    return Version(result, np.concatenate([row["logits"] for row in rows]))


def _moved(model: bytes, seed: int, by: float) -> bytes:
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    random = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            moved = array * np.exp(by * random.standard_normal(array.shape)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return bytes(proto.SerializeToString())


def matches(logits: np.ndarray, expected: np.ndarray) -> bool:
    """Whether an answer is that of a version."""
    scale = float(np.abs(expected).max())
    return bool(np.abs(logits - expected).max() <= TOLERANCE * scale)
