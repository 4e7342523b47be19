"""How a figure grows: a power law fitted to measured points, and its words.

The power law y = a * x^b is fitted by least squares on the logarithms, so that both ends of a range
of hundreds weigh the same. The line y = c + d * x is fitted by least squares, for the cost d of one
more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EXPONENT_PRECISION = 0.15
"""Exponents nearer to 0 are called constant, and nearer to 1 proportional: the measurements are no
more precise."""


@dataclass(frozen=True, slots=True)
class Law:
    """exponent: b. each: d, the cost of one more. start: c. error: the mean misfit of the power law
    as a factor; 1 for a perfect fit."""

    exponent: float
    each: float
    start: float
    error: float

    def words(self, figure: str, cause: str) -> str:
        """One sentence, for example "p50 does not grow with nodes (exponent 0.03)"."""
        b = self.exponent
        if abs(b) < EXPONENT_PRECISION:
            text = f"{figure} does not depend on {cause}"
        elif b < 0:
            text = f"{figure} falls with {cause}"
        elif b < 1 - EXPONENT_PRECISION:
            text = f"{figure} grows more slowly than {cause}"
        elif b <= 1 + EXPONENT_PRECISION:
            text = f"{figure} grows in proportion to {cause}"
        else:
            text = f"{figure} grows faster than {cause}"
        return f"{text} (exponent {b:.2f}, {self.each:+.3g} for each)"


def fit(xs: Sequence[float], ys: Sequence[float]) -> Law | None:
    """The law of at least two points; None for fewer points or a value that is not positive."""
    if len(set(xs)) < 2 or min(*xs, *ys) <= 0:
        return None
    logs = [math.log(x) for x in xs], [math.log(y) for y in ys]
    exponent, offset = _line(*logs)
    misfit = [abs(y - (offset + exponent * x)) for x, y in zip(*logs, strict=True)]
    each, start = _line(xs, ys)
    return Law(exponent, each, start, math.exp(sum(misfit) / len(misfit)))


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept by least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x
