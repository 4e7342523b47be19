"""Seeded inputs for warm-ups, self-tests and timing; how far two results are apart."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

    `shapes` gives shapes by name. Else a specification's example has the shape, and its values are
    like the example's. Other dynamic dimensions become 1 on axis 0 and `dynamic` on the
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
    dtype, example = spec.dtype, spec.example
    if shape is None and example is not None:
        shape = example.shape
    dims = tuple(shape) if shape is not None else spec.shape
    dims = tuple(dim if dim != -1 else 1 if axis == 0 else dynamic for axis, dim in enumerate(dims))
    count = math.prod(dims)
    if example is not None and example.values:
        return _like(source, example.values, count, dtype).reshape(dims)
    if dtype.kind == "f":
        return _normal(source, count).reshape(dims).astype(dtype)
    values = np.frombuffer(source.randbytes(count), np.uint8)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return values.view(dtype).reshape(dims).copy()
    return (values & 1).reshape(dims).astype(dtype)


def _like(
    source: random.Random, values: Sequence[float], count: int, dtype: np.dtype[Any]
) -> np.ndarray:
    """Values [count] of the range, and for floats of the mean and the spread, of an example."""
    low, high = values[:2]
    if dtype.kind == "f":
        mean, spread = values[2:] if len(values) == 4 else ((low + high) / 2, (high - low) / 4)
        drawn = _normal(source, count).astype(np.float64)
        return np.clip(drawn * spread + mean, low, high).astype(dtype)
    words = np.frombuffer(source.randbytes(8 * count), "<u8")
    # A range of all 64 bits has no number of its own values.
    span = min(int(high) - int(low) + 1, (1 << 63) - 1)
    return (words % np.uint64(span) + np.uint64(int(low) % (1 << 64))).astype(dtype)


def _normal(source: random.Random, count: int) -> np.ndarray:
    """FP32 [count], standard normal, from 24 random bits a value (G. Box, M. Muller, 1958)."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(source.randbytes(8 * pairs), "<u4").reshape(2, pairs) >> 8
    uniform = (bits + 1).astype(np.float32) / np.float32(1 << 24)  # in (0, 1]
    radius = np.sqrt(-2 * np.log(uniform[0]))
    angle = np.float32(2 * np.pi) * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def deviation(expected: np.ndarray, actual: np.ndarray, scale: float = 0.0) -> float:
    """The largest difference, relative to the largest finite value expected; 0.0 when equal.

    Where `scale` is larger than that value, it is relative to `scale`. An infinite one excuses any
    difference of values and of how many there are.
    For 8-bit integers it is relative to their range of 255, because one flipped rounding is no
    error. It is infinite when shapes, types, infinities, NaNs, booleans or wider integers differ.
    """
    if expected.dtype != actual.dtype or expected.ndim != actual.ndim:
        return float("inf")
    if math.isinf(scale):
        return 0.0
    if expected.shape != actual.shape:
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
    return difference / max(float(np.abs(wide).max()), scale, float(np.finfo(np.float32).tiny))


# Inputs that differ by this part are one input to a model that computes in 24 bits. Optimisation
# may change an answer by so many times as much as they do: it rounds in each layer.
_NUDGE = 1e-6
_MOST_NUDGES = 10.0


@dataclass(frozen=True)
class SyntheticAnswer:
    """What a plain model gives for synthetic input, for an optimised one to be compared with.

    `scales` are the sizes of tensors by name, where their largest value is not the measure of a
    deviation (see `deviation`).
    """

    tensors: Mapping[str, np.ndarray]
    scales: Mapping[str, float] = field(default_factory=dict)

    def apart(self, actual: Mapping[str, np.ndarray]) -> float:
        """The worst deviation of another answer to the same input."""
        return worst_deviation(self.tensors, actual, self.scales)


def nudged(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs, each float changed by a seeded part of at most 1e-6 (2e-3 in half precision)."""
    source = random.Random(2)
    made = dict(feeds)
    for name, array in feeds.items():
        if array.dtype.kind == "f":
            part = max(_NUDGE, 2.0 * float(np.finfo(array.dtype).eps))
            parts = np.clip(_normal(source, array.size), -1, 1).reshape(array.shape) * part
            made[name] = np.asarray(array * (1.0 + parts)).astype(array.dtype)
    return made


def own_scales(
    specs: Sequence[TensorSpec],
    expected: Mapping[str, np.ndarray],
    nudged_answer: Mapping[str, np.ndarray],
    tolerance: float,
) -> dict[str, float]:
    """The scales by which a model's answer is judged: its own.

    A detector's scores for noise are near zero, and their relative error says nothing: the scale of
    an output is also that of its example when the model was split. Where a model answers otherwise
    to inputs that are equal but for their last bits, optimisation may change as much: values that
    cancel out, or a choice between equals, which is not compared at all (an infinite scale).
    """
    scales: dict[str, float] = {}
    for spec in specs:
        values = spec.example.values if spec.example is not None else ()
        seen = max((abs(each) for each in values[:2]), default=0.0)
        own = deviation(expected[spec.name], nudged_answer[spec.name])
        if math.isfinite(own) and expected[spec.name].dtype.kind == "f":
            own *= _largest(expected[spec.name])
            own *= _MOST_NUDGES / tolerance
        elif math.isfinite(own):
            own = 0.0
        scales[spec.name] = max(seen, own)
    return scales


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))


def worst_deviation(
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    scales: Mapping[str, float] | None = None,
) -> float:
    """The largest `deviation` over all tensors of two results, with their scales; infinite when
    names differ."""
    if expected.keys() != actual.keys():
        return float("inf")
    least = scales or {}
    return max(
        (deviation(expected[name], actual[name], least.get(name, 0.0)) for name in expected),
        default=0.0,
    )
