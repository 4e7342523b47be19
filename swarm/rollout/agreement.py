"""Whether two versions answer alike: the measure of the guard `agree`.

    exact          the same bytes in every output
    relative:0.01  every number within so much of the largest of its output, by the present version
    top-1          the place of the largest number along the last axis, the same in each row

Without a setting it is top-1. Outputs with one number a row, which has no place to compare, are
then compared by relative:0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from swarm.errors import InvalidArgument

TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Agreement:
    """How outputs are compared. tolerance: for `relative`."""

    kind: Literal["exact", "relative", "top-1"] = "top-1"
    tolerance: float = TOLERANCE

    @property
    def text(self) -> str:
        """As it stands in a plan."""
        return f"relative:{self.tolerance:g}" if self.kind == "relative" else self.kind


def parse_agreement(text: Any) -> Agreement:
    """The measure that a text names; "" for the default. Raises `InvalidArgument`."""
    wrong = InvalidArgument(f"--agree {text!r}: it is exact, top-1, or relative:0.01")
    if not isinstance(text, str):
        raise wrong
    kind, _, number = text.partition(":")
    if text in ("", "top-1"):
        return Agreement()
    if text == "exact":
        return Agreement("exact")
    try:
        tolerance = float(number)
    except ValueError:
        raise wrong from None
    if kind != "relative" or not 0 <= tolerance < 1e9:
        raise wrong
    return Agreement("relative", tolerance)


def agree(how: Agreement, present: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> bool:
    """Whether the outputs of the new version are those of the present one, by this measure.
    Outputs of other names or shapes never agree."""
    if present.keys() != new.keys():
        return False
    return all(_alike(how, present[name], new[name]) for name in present)


def _alike(how: Agreement, present: np.ndarray, new: np.ndarray) -> bool:
    if present.shape != new.shape:
        return False
    if how.kind == "exact":
        return present.dtype == new.dtype and present.tobytes() == new.tobytes()
    if not present.size:
        return True
    numbers = present.astype(np.float64), new.astype(np.float64)
    if how.kind == "top-1" and present.ndim and present.shape[-1] > 1:
        places = [np.argmax(array, axis=-1) for array in numbers]
        return bool(np.array_equal(*places))
    return _near(numbers[0], numbers[1], how.tolerance)


def _near(present: np.ndarray, new: np.ndarray, tolerance: float) -> bool:
    """NaN and infinity agree with themselves only."""
    finite = np.isfinite(present)
    if not np.array_equal(present[~finite], new[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    scale = float(np.abs(present[finite]).max())
    return bool(np.all(np.abs(present[finite] - new[finite]) <= tolerance * scale))
