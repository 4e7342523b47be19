"""A decoded picture as people see it: with square pixels, turned and mirrored as the video says.

A phone writes the sensor's rows as they come, and a display matrix beside them; a camera of the
days of television writes pixels that are no squares. Players follow both, and boxes have to fit
what players show.
"""

from __future__ import annotations

from fractions import Fraction

import cv2
import numpy as np

from nodes.cameras.sources.feed import check_size

QUARTERS = (1, 0, 0, 1)  # of a picture that lies as it is stored: (a, b, c, d) of the matrix
_MATRIX = np.dtype("=i4")  # nine of them in the machine's order, as `av_display_rotation_get` reads


def turn_of(matrix: bytes) -> tuple[int, int, int, int]:
    """The quarter turn and mirroring, each of -1, 0, 1, that is nearest to FFmpeg's display matrix:
    a point (x, y) is shown at (a x + c y, b x + d y). `QUARTERS` for one that says nothing."""
    if len(matrix) != 9 * _MATRIX.itemsize:
        return QUARTERS
    values = np.frombuffer(matrix, _MATRIX)
    a, b, c, d = (int(values[at]) for at in (0, 1, 3, 4))
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return (_sign(a), 0, 0, _sign(d)) if a and d else QUARTERS
    return (0, _sign(b), _sign(c), 0) if b and c else QUARTERS


def upright(
    image: np.ndarray, turn: tuple[int, int, int, int], aspect: Fraction | None
) -> np.ndarray:
    """[height, width, 3], uint8. aspect: a pixel's width by its height, None or 0 where
    unknown; the side that is too short grows, so that nothing is lost. Raises `BadPicture` for too
    many pixels."""
    if aspect and aspect > 0 and aspect != 1:
        height, width = image.shape[:2]
        if aspect > 1:
            width = max(1, round(width * aspect))
        else:
            height = max(1, round(height / aspect))
        check_size(width, height)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    a, b, c, d = turn
    if not a:
        image = image.transpose(1, 0, 2)
    if min(a, c) < 0:
        image = image[:, ::-1]
    if min(b, d) < 0:
        image = image[::-1]
    return image


def _sign(value: int) -> int:
    return 1 if value > 0 else -1
