"""Which pixels are filled: pure.

A detector misses an object now and then. So a region is larger than the box that was found, and
stays for some frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

FILL = 127  # of every colour: near zero for networks that take -1 to 1
MOST_BOXES = 4096  # of one frame; a detector that finds more is broken


@dataclass(frozen=True, slots=True)
class MaskRule:
    """threshold: the least score of a box. margin: what a region has beyond the box at each side,
    as a share of the box's width and height. frames: those whose boxes count, this one among
    them. within: seconds that the detector has for one frame."""

    threshold: float = 0.3
    margin: float = 0.25
    frames: int = 5
    within: float = 1.0


class BadBoxes(ValueError):
    """What a detector gave is not boxes."""


def checked(boxes: np.ndarray) -> np.ndarray:
    """float64 [n, 4]: left, top, right, bottom as shares. Raises `BadBoxes`."""
    if boxes.ndim != 2 or boxes.shape[1] != 4 or len(boxes) > MOST_BOXES:
        raise BadBoxes(f"the detector gave {boxes.shape} for boxes [n, 4]")
    values = boxes.astype(np.float64)
    if not np.isfinite(values).all() or (values[:, :2] > values[:, 2:]).any():
        raise BadBoxes("the detector gave a box without an extent")
    return values


def pixels(
    boxes: np.ndarray, margin: float, height: int, width: int
) -> list[tuple[int, int, int, int]]:
    """Left, top, right, bottom of each region, right and bottom exclusive, inside the picture.
    boxes: as `checked` gives them. A box outside of the picture has no region."""
    found = []
    for left, top, right, bottom in boxes:
        across, down = margin * (right - left), margin * (bottom - top)
        x0, x1 = max(0, floor((left - across) * width)), min(width, ceil((right + across) * width))
        y0, y1 = max(0, floor((top - down) * height)), min(height, ceil((bottom + down) * height))
        if x0 < x1 and y0 < y1:
            found.append((x0, y0, x1, y1))
    return found


def filled(image: np.ndarray, regions: Sequence[tuple[int, int, int, int]]) -> np.ndarray:
    """A copy of a picture [height, width, 3] whose regions hold one value."""
    copy = image.copy()
    for left, top, right, bottom in regions:
        copy[top:bottom, left:right] = FILL
    return copy
