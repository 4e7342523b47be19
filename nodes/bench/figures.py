"""A figure: the median of several rounds, and how far the rounds lie apart.

The documents of all benchmarks hold their figures under ``figures``, by name::

    {"4096/mesh/hop_p50_us": {"value": 310.2, "low": 298.0, "high": 331.7, "unit": "us",
                              "better": "lower", "floor": false}}

``low`` and ``high`` are the best and worst round in numbers; ``floor`` marks a ratio to a floor
measured in the same run: only those can be compared between machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Better = Literal["lower", "higher"]


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
        digits: int = 4,
    ) -> Figure:
        """From one value per round; rounded to `digits` significant digits."""
        values = list(rounds)
        if not values:
            raise ValueError("a figure needs at least one round")
        low, middle, high = min(values), statistics.median(values), max(values)
        return cls(
            significant(middle, digits),
            significant(low, digits),
            significant(high, digits),
            unit,
            better,
            floor,
        )

    @property
    def spread(self) -> float:
        """(high - low) / value: 0 when all rounds agree."""
        return (self.high - self.low) / abs(self.value) if self.value else 0.0

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


def significant(value: float, digits: int = 4) -> float:
    """`value` with so many significant digits: more would be noise."""
    return float(f"{value:.{digits}g}")
