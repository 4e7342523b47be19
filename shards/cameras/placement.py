"""Where a picture lies on a model's grid of pixels, and the way back. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture at [left, left + width) x [top, top + height) of a grid, all in its pixels. The
    grid is grid_width x grid_height."""

    left: int
    top: int
    width: int
    height: int
    grid_width: int
    grid_height: int

    def forward(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes [n, 4] (left, top, right, bottom) from shares of the picture to shares of the
        grid, float32."""
        size, corner, whole = self._factors()
        return np.asarray((boxes * size + corner) / whole, np.float32)

    def back(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes [n, 4] from shares of the grid to shares of the picture, cut off at its borders,
        float32. The inverse of `forward` for boxes within the picture."""
        if (self.width, self.height) == (self.grid_width, self.grid_height):
            return np.asarray(np.clip(boxes, 0, 1), np.float32)
        size, corner, whole = self._factors()
        return np.asarray(np.clip((boxes * whole - corner) / size, 0, 1), np.float32)

    def points(self, points: np.ndarray) -> np.ndarray:
        """Points [..., 2] from shares of the grid to shares of the picture, float32."""
        size, corner, whole = self._factors()
        return np.asarray((points * whole[:2] - corner[:2]) / size[:2], np.float32)

    def part(self, grid: np.ndarray) -> np.ndarray:
        """What the picture covers of [h, w], which covers the whole grid in steps of its own."""
        down, across = grid.shape[0] / self.grid_height, grid.shape[1] / self.grid_width
        top, left = round(self.top * down), round(self.left * across)
        bottom = max(top + 1, round((self.top + self.height) * down))
        right = max(left + 1, round((self.left + self.width) * across))
        return grid[top:bottom, left:right]

    def _factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            np.array([self.width, self.height] * 2, np.float64),
            np.array([self.left, self.top] * 2, np.float64),
            np.array([self.grid_width, self.grid_height] * 2, np.float64),
        )


def place(shape: Sequence[int], width: int, height: int, fit: str) -> PlacedPicture:
    """The placement of a picture of this `image.shape` on a grid of `width` x `height` pixels.

    `stretch` fills the grid. `letterbox` keeps the proportions to the next pixel, in the middle,
    and `corner` at the left and the top, to the pixel below. `line` fills the height, at the left,
    and keeps the proportions of pictures that are not too long for that.
    """
    if fit == "stretch":
        return PlacedPicture(0, 0, width, height, width, height)
    if fit == "line":
        across = min(width, math.ceil(height * shape[1] / shape[0]))
        return PlacedPicture(0, 0, across, height, width, height)
    scale = min(height / shape[0], width / shape[1])
    if fit == "corner":
        across, down = (max(1, int(side * scale)) for side in (shape[1], shape[0]))
        return PlacedPicture(0, 0, across, down, width, height)
    across = min(width, max(1, round(shape[1] * scale)))
    down = min(height, max(1, round(shape[0] * scale)))
    left, top = (width - across) // 2, (height - down) // 2
    return PlacedPicture(left, top, across, down, width, height)
