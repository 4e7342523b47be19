"""How far two answers to one question are apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


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
