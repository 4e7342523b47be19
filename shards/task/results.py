"""Results that people understand: boxes, classes, a vector. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Detections:
    """n objects in one picture. boxes: [n, 4], float32, left, top, right, bottom as shares (0..1)
    of the whole picture's width and height. scores: [n], float32, 0..1. classes: [n], int64.
    labels: names by class, () where the model has none. ids: [n], int64, of tracked objects, None
    where nobody tracks them."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    labels: tuple[str, ...] = ()
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, slots=True)
class Classes:
    """The k likeliest classes of one picture, the likeliest first. classes: [k], int64. scores:
    [k], float32, 0..1. labels: names by class."""

    classes: np.ndarray
    scores: np.ndarray
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Segments:
    """classes: [height, width], int64 or uint8: the class of each place of the model's own grid.
    labels: names by class."""

    classes: np.ndarray
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedding:
    """vector: [d], float32."""

    vector: np.ndarray
