"""How much one picture differs from another: a number, by OpenCV.

A picture is reduced once, when it comes; two reduced pictures are compared for each frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

SSIM_SIZE = (80, 60)  # width, height
BLOCK_SIZE, BLOCK = (320, 240), 16
THUMBNAIL_SIZE = (32, 32)
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2  # of SSIM (Wang et al., 2004)


class Measure(NamedTuple):
    """reduced(image): uint8 [height, width, 3] → the little that is kept. change(before, after):
    of two reduced pictures."""

    reduced: Callable[[np.ndarray], np.ndarray]
    change: Callable[[np.ndarray, np.ndarray], float]


def gray(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [height, width] of `size`. To twice the size by the nearest pixels, then by areas: a
    quarter of the time of areas alone with 640x480, a twentieth with 1920x1080."""
    twice = cv2.resize(image, (2 * size[0], 2 * size[1]), interpolation=cv2.INTER_LINEAR)
    return cv2.cvtColor(cv2.resize(twice, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)


def ssim_map(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Structural similarity at each place, of two gray pictures of one size, in windows of 7x7."""
    a, b = before.astype(np.float32), after.astype(np.float32)
    mean_a, mean_b = cv2.blur(a, (7, 7)), cv2.blur(b, (7, 7))
    ab, aa, bb = mean_a * mean_b, mean_a * mean_a, mean_b * mean_b
    covariance = cv2.blur(a * b, (7, 7)) - ab
    variances = cv2.blur(a * a + b * b, (7, 7)) - (aa + bb)
    similar: np.ndarray = ((2 * ab + _C1) * (2 * covariance + _C2)) / (
        (aa + bb + _C1) * (variances + _C2)
    )
    return similar


def _ssim_min(before: np.ndarray, after: np.ndarray) -> float:
    """1 - the least local similarity: 0 (the same) to 2."""
    return 1.0 - float(ssim_map(before, after).min())


def _block(before: np.ndarray, after: np.ndarray) -> float:
    """The largest mean difference of a block of 16x16, 0 to 255."""
    difference = cv2.absdiff(before, after)
    height, width = difference.shape
    size = (width // BLOCK, height // BLOCK)
    return float(cv2.resize(difference, size, interpolation=cv2.INTER_AREA).max())


def _thumbnail(before: np.ndarray, after: np.ndarray) -> float:
    """The largest difference of a pixel, 0 to 255."""
    return float(cv2.absdiff(before, after).max())


def _hashed(image: np.ndarray) -> np.ndarray:
    """The 64 signs of a picture's lowest frequencies (pHash), bool [64]."""
    lowest = cv2.dct(gray(image, THUMBNAIL_SIZE).astype(np.float32))[:8, :8].ravel()
    bits: np.ndarray = lowest > np.median(lowest)
    return bits


def _bits(before: np.ndarray, after: np.ndarray) -> float:
    """Signs that differ, 0 to 64."""
    return float(np.count_nonzero(before != after))


MEASURES = {
    "ssim-min": Measure(lambda image: gray(image, SSIM_SIZE), _ssim_min),
    "block": Measure(lambda image: gray(image, BLOCK_SIZE), _block),
    "thumbnail": Measure(lambda image: gray(image, THUMBNAIL_SIZE), _thumbnail),
    "phash": Measure(_hashed, _bits),
}
"""By the names of `nodes.cameras.gate.gate.THRESHOLDS`."""
