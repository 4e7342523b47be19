"""Results that people understand: boxes, classes, a line of text, a vector. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Masks:
    """Of n objects, on a grid of shape (height, width) that covers the whole picture. counts: for
    each object the lengths of runs, column by column, the first one of places that are left out:
    COCO's uncompressed form."""

    shape: tuple[int, int]
    counts: tuple[np.ndarray, ...]

    def __getitem__(self, at: int) -> np.ndarray:
        """bool [height, width]."""
        height, width = self.shape
        is_in = np.arange(len(self.counts[at])) % 2 == 1
        return np.repeat(is_in, self.counts[at]).reshape(width, height).T


@dataclass(frozen=True, slots=True)
class Detections:
    """n objects in one picture. boxes: [n, 4], float32, left, top, right, bottom as shares (0..1)
    of the whole picture's width and height. scores: [n], float32, 0..1. classes: [n], int64.
    labels: names by class, () where the model has none. ids: [n], int64, of tracked objects, None
    where nobody tracks them.

    None where the head does not tell them: points: [n, k, 3], float32, x and y as shares of the
    picture, and how likely the point is seen. corners: [n, 4, 2], float32, of boxes that are
    turned, clockwise, as shares; they may lie outside of the picture, `boxes` are around them.
    masks: of the objects."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    labels: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    points: np.ndarray | None = None
    corners: np.ndarray | None = None
    masks: Masks | None = None

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
    """classes: [height, width], int64 or uint8: the class of each place of a grid that covers the
    picture. labels: names by class."""

    classes: np.ndarray
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DepthGrid:
    """values: [height, width], float32, of a grid that covers the picture: metres, or what the
    network was trained on; a larger one may be nearer or farther."""

    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Text:
    """A line that was read. score: the mean of its letters', 0 for nothing."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Embedding:
    """vector: [d], float32."""

    vector: np.ndarray
