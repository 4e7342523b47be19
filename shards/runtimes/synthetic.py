"""Seeded inputs for warm-ups, self-tests and timing; how far two results are apart."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from shards.specs import TensorSpec

# The deviation that a self-test allows between optimisation levels, relative to the largest value
# of a tensor. Measured: 5e-7 (FP32) and 7.8e-3 (quantized, where a rounding flips). Half precision
# has 11 bits.
TOLERANCE = 1e-4
TOLERANCE_HALF = 1e-2
TOLERANCE_QUANTIZED = 3e-2


def random_feeds(
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    seed: int = 0,
    dynamic: int = 1,
) -> dict[str, np.ndarray]:
    """Seeded arrays in C order that fit `specs`, by name.

    `shapes` gives shapes by name. Other dynamic dimensions become 1 on axis 0 and `dynamic` on the
    other axes. Floats are standard normal, 8-bit integers span their range, booleans are fair.
    Wider integers are 0 or 1: they are mostly indices, and nearly every table has these two rows.
    """
    # Importing numpy.random takes 2 MB and 20 ms in every node that runs a shard.
    source = random.Random(seed)
    return {
        spec.name: _random(source, spec, (shapes or {}).get(spec.name), dynamic) for spec in specs
    }


def _random(
    source: random.Random, spec: TensorSpec, shape: Sequence[int] | None, dynamic: int
) -> np.ndarray:
    dtype = spec.dtype
    dims = tuple(shape) if shape is not None else spec.shape
    dims = tuple(dim if dim != -1 else 1 if axis == 0 else dynamic for axis, dim in enumerate(dims))
    count = math.prod(dims)
    if dtype.kind == "f":
        return _normal(source, count).reshape(dims).astype(dtype)
    values = np.frombuffer(source.randbytes(count), np.uint8)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return values.view(dtype).reshape(dims).copy()
    return (values & 1).reshape(dims).astype(dtype)


def _normal(source: random.Random, count: int) -> np.ndarray:
    """FP32 [count], standard normal, from 24 random bits a value (G. Box, M. Muller, 1958)."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(source.randbytes(8 * pairs), "<u4").reshape(2, pairs) >> 8
    uniform = (bits + 1).astype(np.float32) / np.float32(1 << 24)  # in (0, 1]
    radius = np.sqrt(-2 * np.log(uniform[0]))
    angle = np.float32(2 * np.pi) * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def deviation(expected: np.ndarray, actual: np.ndarray) -> float:
    """The largest difference, relative to the largest finite value expected; 0.0 when equal.

    For 8-bit integers it is relative to their range of 255, because one flipped rounding is no
    error. It is infinite when shapes, types, infinities, NaNs, booleans or wider integers differ.
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.size == 0 or np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f"):
        return 0.0
    if expected.dtype.kind != "f":
        if expected.dtype.kind == "b" or expected.dtype.itemsize > 1:
            return float("inf")
        return float(np.abs(expected.astype(np.int32) - actual.astype(np.int32)).max()) / 255.0
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return float("inf")
    wide = expected[finite].astype(np.float64)
    difference = float(np.abs(wide - actual[finite].astype(np.float64)).max())
    if not np.isfinite(difference):
        return float("inf")
    return difference / max(float(np.abs(wide).max()), float(np.finfo(np.float32).tiny))


def worst_deviation(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> float:
    """The largest `deviation` over all tensors of two results; infinite when names differ."""
    if expected.keys() != actual.keys():
        return float("inf")
    return max((deviation(expected[name], actual[name]) for name in expected), default=0.0)
