"""Pixels: resized onto a model's grid, made gray, normalised. numpy, and OpenCV where installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.cameras.placement import place

FITS = ("stretch", "letterbox", "corner", "line")


def on_grid(
    image: np.ndarray, width: int, height: int, fit: str, fill: int, *, gray: bool = False
) -> np.ndarray:
    """image: uint8 [h, w, 3]. Returns uint8 [height, width, 3], with `gray` [height, width, 1],
    C order; `fill` stands where the picture does not reach."""
    at = place(image.shape, width, height, fit)
    small = resized(image, at.width, at.height)
    if gray:
        small = to_gray(small)
    if (at.width, at.height) == (width, height):
        return np.ascontiguousarray(small)
    grid = np.full((height, width, small.shape[2]), fill, np.uint8)
    grid[at.top : at.top + at.height, at.left : at.left + at.width] = small
    return grid


def resized(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8 [h, w, c] to [height, width, c], linear between pixel centres, without blurring first:
    `cv2.resize` with INTER_LINEAR. Without OpenCV, by numpy."""
    if image.shape[:2] == (height, width):
        return image
    try:
        import cv2
    except ImportError:
        return resized_by_numpy(image, width, height)
    return np.asarray(cv2.resize(np.ascontiguousarray(image), (width, height)), np.uint8)


def resized_by_numpy(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """As `resized`, without OpenCV; a value differs from OpenCV's by 1 at most."""
    up, down, share_down = _neighbours(image.shape[0], height)
    left, right, share_right = _neighbours(image.shape[1], width)
    across = _between(image[:, left], image[:, right], share_right[None, :, None])
    made = _between(across[up], across[down], share_down[:, None, None])
    return np.asarray(np.rint(made), np.uint8)


def _neighbours(have: int, want: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pixels before and behind each new pixel's centre, and the share of the one behind."""
    at = np.clip((np.arange(want) + 0.5) * (have / want) - 0.5, 0, have - 1)
    before = np.floor(at).astype(np.intp)
    return before, np.minimum(before + 1, have - 1), (at - before).astype(np.float32)


def _between(one: np.ndarray, other: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.asarray(one * (np.float32(1) - share) + other * share)


def to_gray(image: np.ndarray) -> np.ndarray:
    """uint8 [h, w, 3], RGB, to [h, w, 1]: ITU-R BT.601's luma, in integers."""
    wide = image.astype(np.uint32)
    luma = wide[:, :, 0] * 4899 + wide[:, :, 1] * 9617 + wide[:, :, 2] * 1868
    return ((luma + (1 << 13)) >> 14).astype(np.uint8)[:, :, None]


def normalised(
    pixels: np.ndarray,
    offset: np.ndarray,
    factor: np.ndarray,
    layout: str,
    dtype: np.dtype[Any],
) -> np.ndarray:
    """(pixels - offset) * factor in FP32, as a graph with Sub and Mul computes it, as `dtype`.
    pixels: uint8, rank 4, in this layout. offset, factor: FP32 [1] or [channels]."""
    values = pixels.astype(np.float32, order="C")
    shape = (1, -1, 1, 1) if layout == "nchw" else (1, 1, 1, -1)
    values -= offset.reshape(shape)
    values *= factor.reshape(shape)
    return values.astype(dtype, copy=False)
