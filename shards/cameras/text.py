"""Text: where lines are, of a map of how likely each place is text, and what a line says.

The map is that of M. Liao et al., "Real-time scene text detection with differentiable
binarization", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shards.errors import InputError, PictureError

PLACE = 0.3  # a place is text from here on
LEAST_SIDE = 3  # places, of the shorter side of an outline
GROWTH = 1.6  # of an outline, in its area over its length: networks are trained on shrunk ones
LEAST_ROOM = 2  # places, that a box is longer than `LEAST_SIDE` once it has grown
MOST_OUTLINES = 1000


def lines_of(output: np.ndarray, threshold: float, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners [n, 4, 2] as shares of the map, from the upper left clockwise, and scores [n], the
    likeliest first. output: [1, 1, h, w], 0..1. Raises InputError, and PictureError without OpenCV.
    """
    if output.ndim != 4 or output.shape[:2] != (1, 1):
        raise InputError("db", "[1,1,h,w]", str(list(output.shape)))
    try:
        import cv2
    except ImportError:
        raise PictureError(
            "text detectors take OpenCV: pip install 'swarm-mesh[perception]'"
        ) from None
    shares = output[0, 0].astype(np.float32)
    places = cv2.dilate((shares > PLACE).astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines = cv2.findContours(places, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]
    found, scores = [], []
    for outline in outlines[:MOST_OUTLINES]:
        centre, sides, angle = cv2.minAreaRect(outline)
        if min(sides) < LEAST_SIDE:
            continue
        corners = cv2.boxPoints((centre, sides, angle))
        score = _mean(shares, corners)
        grown = sides[0] * sides[1] * GROWTH / (2 * (sides[0] + sides[1]))
        # The authors' own grows outlines with whole corners.
        centre, sides, angle = cv2.minAreaRect(np.trunc(corners))
        sides = (sides[0] + 2 * grown, sides[1] + 2 * grown)
        if score < threshold or min(sides) < LEAST_SIDE + LEAST_ROOM:
            continue
        found.append(from_upper_left(cv2.boxPoints((centre, sides, angle))))
        scores.append(score)
    order = np.argsort(-np.array(scores, np.float32), kind="stable")[:top]
    corners = np.array(found, np.float32).reshape(-1, 4, 2)[order]
    return corners / np.float32(shares.shape[::-1]), np.array(scores, np.float32)[order]


def _mean(shares: np.ndarray, corners: np.ndarray) -> float:
    """Of the places inside of four corners."""
    import cv2

    height, width = shares.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    inside = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(inside, [(corners - (left, top)).astype(np.int32)], 1)
    return float(cv2.mean(shares[top : bottom + 1, left : right + 1], inside)[0])


def from_upper_left(corners: np.ndarray) -> np.ndarray:
    """Four corners [4, 2], clockwise from the upper one of the two that lie most to the left."""
    left, right = np.split(corners[np.argsort(corners[:, 0], kind="stable")], 2)
    left, right = (pair[np.argsort(pair[:, 1], kind="stable")] for pair in (left, right))
    return np.stack([left[0], right[0], right[1], left[1]])


def said_by(classes: np.ndarray, scores: np.ndarray, letters: Sequence[str]) -> tuple[str, float]:
    """The text of a line, and the mean score of its letters, 0 without any: a class that is
    repeated counts once, class 0 is no letter (A. Graves et al., "Connectionist temporal
    classification", 2006). classes, scores: [t]. letters: of class 1 on."""
    is_new = np.ones(len(classes), bool)
    is_new[1:] = classes[1:] != classes[:-1]
    rows = np.nonzero(is_new & (classes > 0))[0]
    known = [int(classes[row]) - 1 for row in rows]
    text = "".join(letters[at] if at < len(letters) else "\ufffd" for at in known)
    return text, float(scores[rows].mean()) if len(rows) else 0.0
