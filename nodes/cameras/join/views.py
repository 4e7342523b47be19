"""From an edge's result line to numbers that a fusion model takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nodes.cameras.join.pairing import View
from swarm.errors import InvalidArgument

LONGEST_AGE = 60_000.0  # milliseconds; an older result is no view of now


def view_of(edge: str, data: bytes, now: float) -> View | None:
    """An edge's result that came `now`, in seconds; None for one without an answer.

    Its line tells its age, so edges need no clock in common: what differs is how long lines travel.
    A result that a gate repeats stands for a frame of now. Raises `InvalidArgument`.
    """
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise InvalidArgument(f"{edge}: a result that is no JSON object")
    if line.get("status") != "OK":
        return None
    age = 0.0 if "repeats" in line else line.get("age_ms")
    if isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age <= LONGEST_AGE:
        raise InvalidArgument(f"{edge}: a result whose age_ms is {age!r:.40}")
    return View(edge, now - age / 1e3, now, line)


def fused_input(
    edges: Sequence[str], moment: Mapping[str, View], shape: Sequence[int | str]
) -> np.ndarray:
    """FP32 [1, edges * width]: the views one behind the other, zeros for one that is missing.

    shape: of the fusion model's input, [batch, edges * width]. Raises `InvalidArgument`.
    """
    total = shape[1] if len(shape) == 2 else None
    if not isinstance(total, int) or total % len(edges):
        raise InvalidArgument(
            f"the fusion model takes {list(shape)}; a join of {len(edges)} edges needs "
            f"[batch, {len(edges)} * numbers of one view]"
        )
    width = total // len(edges)
    parts = [
        _numbers(edge, moment[edge].result, width) if edge in moment else np.zeros(width)
        for edge in edges
    ]
    return np.concatenate(parts).astype(np.float32)[None]


def _numbers(edge: str, line: Mapping[str, Any], width: int) -> np.ndarray:
    """An embedding, a single output of numbers, or scores at their classes' places."""
    try:
        if "embedding" in line:
            found = np.array(line["embedding"], np.float64)
        elif "classes" in line:
            found = np.zeros(width)
            for row in line["classes"]:
                found[_place(row["class"], width)] = row["score"]
        else:
            (values,) = line["outputs"].values()
            found = np.array(values, np.float64).reshape(-1)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        found = np.zeros(0)
    if found.shape != (width,) or not all(map(math.isfinite, found)):
        raise InvalidArgument(
            f"{edge}: a result that is not {width} numbers: a join takes an embedding, classes, or "
            f"one output of {width}"
        )
    return found


def _place(number: int, width: int) -> int:
    if not 0 <= number < width:
        raise IndexError(number)
    return number
