"""How sure a model is: numbers by which a part is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


def _largest(array: np.ndarray) -> float:
    """Of each row the largest value along the last axis; of these the least."""
    return float(array.max(axis=-1).min())


def _margin(array: np.ndarray) -> float:
    """Of each row the largest value less the second largest, along the last axis; of these the
    least: the row of which the model is least sure."""
    two = np.partition(array, -2, axis=-1)[..., -2:]
    if two.dtype.kind != "f":  # integers would run over, and booleans have no difference
        two = two.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of two infinite ones it is no number
        return float((two[..., 1] - two[..., 0]).min())


def _rows(array: np.ndarray) -> float:
    """How many rows there are."""
    return float(array.shape[0])


def _value(array: np.ndarray) -> float:
    """The only value."""
    return float(array.reshape(-1)[0])


MEASURES: Mapping[str, Callable[[np.ndarray], float]] = {
    "largest": _largest,
    "margin": _margin,
    "rows": _rows,
    "value": _value,
}
# Measures of no row: nothing is unsure.
OF_NONE = {"largest": np.inf, "margin": np.inf, "rows": 0.0, "value": 0.0}


@dataclass(frozen=True, slots=True)
class MeasureBound:
    """A measure of a tensor is below a bound, or above it. A measure that is no number is neither
    below nor above."""

    measure: str
    below: bool
    bound: float

    def needs_two(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has too few values for the measure."""
        return self.measure == "margin" and shape[-1] in (0, 1)

    def of(self, array: np.ndarray) -> float:
        """The measure of a tensor."""
        return MEASURES[self.measure](array) if array.size else OF_NONE[self.measure]

    def holds(self, array: np.ndarray) -> bool:
        """Whether it holds for a tensor."""
        measured = self.of(array)
        return measured < self.bound if self.below else measured > self.bound
