"""What a model's file and its runs tell about its outputs, beyond their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

SHARE_SLACK = 2e-3  # of scores in half precision
SUM_SLACK = 5e-3  # of a row of probabilities in half precision


@dataclass(frozen=True)
class Said:
    """What the file's metadata says, as Ultralytics writes it. task: a word of its own, "" without
    one. labels: the names of the classes. size: width and height of the picture. normalise: a name
    of `shards.cameras.wish.NORMALISE` where the exporter has only one way. stride: pixels of the
    picture to a cell of the largest scale, 0 where nothing says it. points: how many keypoints, and
    numbers of each. head: the exporter's name for it, with " end2end" behind where it suppresses
    boxes itself. letters: of a recogniser. notes: what cannot be read."""

    task: str = ""
    labels: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    normalise: str = ""
    stride: int = 0
    points: tuple[int, int] | None = None
    head: str = ""
    letters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeenGraph:
    """constant: outputs that depend on no input. softmax, sigmoid: outputs made by such an
    operator, also where others that leave values as they are stand behind it. values: outputs of
    runs on synthetic pictures, [runs, …] by name; empty where nothing was run."""

    constant: frozenset[str] = frozenset()
    softmax: frozenset[str] = frozenset()
    sigmoid: frozenset[str] = frozenset()
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    said: Said = Said()

    def of(self, name: str) -> np.ndarray | None:
        """FP32 [runs, …], None where nothing was run, or no number is finite."""
        found = self.values.get(name)
        if found is None or found.dtype.kind not in "fiu":
            return None
        values = found.astype(np.float32)
        return values if values.size and np.isfinite(values).all() else None


def are_shares(values: np.ndarray | None) -> bool:
    """Whether all values lie from 0 to 1, as scores do. Nothing seen contradicts nothing."""
    return values is None or bool(values.min() >= -SHARE_SLACK and values.max() <= 1 + SHARE_SLACK)


def sum_to_one(values: np.ndarray | None) -> bool:
    """Whether the values are shares, and each row of the second axis sums to one."""
    if values is None or values.ndim < 2 or values.shape[1] < 2 or not are_shares(values):
        return False
    return bool(np.abs(values.sum(axis=1) - 1).max() <= SUM_SLACK)


def span(values: np.ndarray) -> str:
    """The least and the largest value, for people."""
    return f"from {values.min():.3g} to {values.max():.3g}"
