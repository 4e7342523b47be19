"""Figures of the last minutes, one point a second, in little memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

POINTS = 300  # seconds that are kept


class History:
    """A ring of points; each has the same `width` of figures, NaN where nothing was measured."""

    __slots__ = ("_at", "_count", "_rows")

    def __init__(self, width: int, points: int = POINTS) -> None:
        self._rows = [array("f", [math.nan] * points) for _ in range(width)]
        self._at = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, figures: Sequence[float | None]) -> None:
        """Append a point; the oldest one goes when the ring is full."""
        for row, figure in zip(self._rows, figures, strict=True):
            row[self._at] = math.nan if figure is None else figure
        self._at = (self._at + 1) % len(self._rows[0])
        self._count = min(self._count + 1, len(self._rows[0]))

    def columns(self) -> list[list[float | None]]:
        """For each figure its values, oldest first; None where nothing was measured."""
        size = len(self._rows[0])
        first = (self._at - self._count) % size
        order = [(first + step) % size for step in range(self._count)]
        return [[rounded(row[place]) for place in order] for row in self._rows]


def rounded(figure: float | None) -> float | None:
    """As a page shows it: four significant digits; None for NaN and infinity."""
    if figure is None or not math.isfinite(figure):
        return None
    return float(f"{figure:.4g}")


class Rate:
    """Requests a second, from a counter that is read each second, or less often."""

    __slots__ = ("_counts",)

    LEAST = 0.4  # seconds between two readings that tell a rate
    WITHIN = 3.0  # seconds before which no reading is needed, where later ones tell a rate

    def __init__(self) -> None:
        self._counts: list[tuple[float, float]] = []  # four at most

    def read(self, now: float, count: float) -> None:
        """A reading; a count that went back begins anew."""
        counts = self._counts
        if counts and count < counts[-1][1]:
            counts.clear()
        if counts and now - counts[-1][0] < self.LEAST:
            return
        counts.append((now, count))
        del counts[:-4]
        while len(counts) > 2 and now - counts[1][0] >= self.WITHIN:
            del counts[0]

    @property
    def value(self) -> float | None:
        """None before the second reading."""
        if len(self._counts) < 2:
            return None
        (began, before), (ended, after) = self._counts[0], self._counts[-1]
        return (after - before) / (ended - began)
