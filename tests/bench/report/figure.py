"""A figure: the median of several rounds, and how far the rounds lie apart.

The documents of all benchmarks hold their figures under ``figures``, by name::

    {"4096/mesh/hop_p50_us": {"value": 310.2, "low": 298.0, "high": 331.7, "unit": "us",
                              "better": "lower", "floor": false}}

``low`` and ``high`` are the smallest and the largest round; ``floor`` marks a ratio to a floor that
was measured in the same run: only such ratios can be compared between machines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Better = Literal["lower", "higher"]

SIGNIFICANT_DIGITS = 4
"""Digits that a figure keeps: more would be noise."""


@dataclass(frozen=True, slots=True)
class Figure:
    """value: the median over rounds; low, high: the smallest and the largest round."""

    value: float
    low: float
    high: float
    unit: str = ""
    better: Better = "lower"
    floor: bool = False

    @classmethod
    def of(
        cls,
        rounds: Iterable[float],
        unit: str = "",
        better: Better = "lower",
        floor: bool = False,
    ) -> Figure:
        """From one value per round. Raises `ValueError` when there is none."""
        values = list(rounds)
        if not values:
            raise ValueError("a figure needs at least one round")
        low, middle, high = min(values), statistics.median(values), max(values)
        return cls(significant(middle), significant(low), significant(high), unit, better, floor)

    def as_doc(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> Figure:
        """Raises `ValueError` for a damaged entry."""
        try:
            better: Better = "higher" if doc.get("better") == "higher" else "lower"
            return cls(
                float(doc["value"]),
                float(doc["low"]),
                float(doc["high"]),
                str(doc.get("unit", "")),
                better,
                bool(doc.get("floor", False)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a figure: {doc!r}") from error

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}-{self.high:.3g})"


def significant(value: float) -> float:
    """`value` rounded to `SIGNIFICANT_DIGITS`."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile, a value that was really observed; 0.0 of no values.

    share: 0 to 1. The 0.99 percentile of fewer than a hundred values is their maximum.
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
