"""Results drawn into a picture, for people: boxes, labels, masks, keypoints, depths, text, and how
old all that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from shards.cameras.results import Classes, DepthGrid, Detections, Segments, Text

# Of Okabe and Ito, "Color Universal Design" (2008): told apart by all eyes. RGB.
COLOURS = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167),
    (120, 170, 255),
)  # fmt: skip
FONT = cv2.FONT_HERSHEY_SIMPLEX
MOST_BOXES = 200  # more hide the picture
ROOM = 0.92  # of the picture's width, for its caption: OpenCV's sizes of texts are estimates
SEEN = 0.5  # a keypoint that is surely enough there to be drawn
SHARE_OF_SEGMENTS = 0.5  # of the colour at a place


def drawn(image: np.ndarray, found: Any, caption: str) -> np.ndarray:
    """A copy of the picture, [height, width, 3], uint8, RGB, with what was found in it. caption: a
    line at its lower edge."""
    picture = image.copy()
    size = max(0.35, min(picture.shape[:2]) / 900)
    match found:
        case Detections():
            _boxes(picture, found, size)
        case Classes():
            rows = zip(found.classes.tolist(), found.scores.tolist(), strict=True)
            lines = [f"{_name(found.labels, n)} {score:.2f}" for n, score in rows]
            _lines(picture, lines[:5], size)
        case Segments():
            numbers = found.classes.astype(np.int64)
            _tint(picture, np.where(numbers == 0, 0, 1 + numbers % len(COLOURS)))
        case DepthGrid():
            picture = _depths(picture, found.values)
        case Text():
            _lines(picture, [f"{found.text} {found.score:.2f}"], size)
    _caption(picture, caption, size)
    return picture


def caption_of(name: str, age_ms: float, parts: Mapping[str, float]) -> str:
    """The camera, the age of its result, and the largest parts of that."""
    told = [f"{part} {ms:.1f}" for part, ms in parts.items() if ms >= 0.1 and part != "draw"]
    return f"{name}  {age_ms:.0f} ms  =  {'  '.join(told)}"


def _boxes(picture: np.ndarray, found: Detections, size: float) -> None:
    height, width = picture.shape[:2]
    thick = max(1, round(2 * size))
    marks = found.classes if found.ids is None else found.ids
    if found.masks is not None:
        grid = np.zeros(found.masks.shape, np.int64)
        for at in reversed(range(min(len(found), MOST_BOXES))):  # the likeliest on top
            grid[found.masks[at]] = 1 + marks[at] % len(COLOURS)
        _tint(picture, grid)
    edges = np.clip(np.nan_to_num(found.boxes[:MOST_BOXES]), 0, 1) * (width, height, width, height)
    for at, (left, top, right, bottom) in enumerate(edges.round().astype(int).tolist()):
        number = int(found.classes[at])
        tracked = None if found.ids is None else int(found.ids[at])
        colour = COLOURS[int(marks[at]) % len(COLOURS)]
        if found.corners is None:
            cv2.rectangle(picture, (left, top), (right, bottom), colour, thick)
        else:
            cv2.polylines(picture, [_pixels(found.corners[at], picture)], True, colour, thick)
        if found.points is not None:
            points = found.points[at]
            for x, y in _pixels(points[points[:, 2] >= SEEN, :2], picture).tolist():
                cv2.circle(picture, (x, y), 2 * thick, colour, -1)
        text = f"{_name(found.labels, number)} {float(found.scores[at]):.2f}"
        _text(picture, text if tracked is None else f"#{tracked} {text}", (left, top), size, colour)


def _pixels(shares: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """Points [k, 2] as whole pixels; far ones come near, since OpenCV's numbers are small."""
    near = np.clip(np.nan_to_num(shares), -1, 2)
    return np.asarray(np.rint(near * picture.shape[1::-1]), np.int32)


def _tint(picture: np.ndarray, numbers: np.ndarray) -> None:
    """Colours over a picture, by the number of each place of a grid; 0 stays as it is."""
    height, width = picture.shape[:2]
    table = np.array([(0, 0, 0), *COLOURS], np.uint8)
    large = cv2.resize(table[numbers], (width, height), interpolation=cv2.INTER_NEAREST)
    covered = large.any(axis=2)
    mixed = cv2.addWeighted(picture, 1 - SHARE_OF_SEGMENTS, large, SHARE_OF_SEGMENTS, 0)
    picture[covered] = mixed[covered]


def _depths(picture: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Depths in colours, from the least (dark) to the largest, in place of the picture."""
    values = np.nan_to_num(values.astype(np.float32))
    least, largest = float(values.min()), float(values.max())
    shares = (values - least) / max(largest - least, 1e-9)
    colours = cv2.applyColorMap((shares * 255).astype(np.uint8), cv2.COLORMAP_VIRIDIS)
    return cv2.resize(np.ascontiguousarray(colours[..., ::-1]), picture.shape[1::-1])


def _lines(picture: np.ndarray, lines: Sequence[str], size: float) -> None:
    for number, line in enumerate(lines, 1):
        _text(picture, line, (4, round(number * 30 * size) + 4), size, COLOURS[number - 1])


def _text(
    picture: np.ndarray, text: str, at: tuple[int, int], size: float, back: tuple[int, ...]
) -> None:
    """Dark letters on a plate of this colour, inside the picture."""
    text = _plain(text)
    (width, height), below = cv2.getTextSize(text, FONT, size, 1)
    left = max(0, min(at[0], picture.shape[1] - width - 4))
    bottom = max(height + below + 2, at[1])
    cv2.rectangle(
        picture, (left, bottom - height - below - 2), (left + width + 4, bottom), back, -1
    )
    cv2.putText(picture, text, (left + 2, bottom - below), FONT, size, (0, 0, 0), 1, cv2.LINE_AA)


def _caption(picture: np.ndarray, text: str, size: float) -> None:
    text = _plain(text)
    (width, height), below = cv2.getTextSize(text, FONT, size, 1)
    room = ROOM * picture.shape[1]
    if width > room:
        size *= room / width
    top = picture.shape[0] - height - below - 6
    picture[max(0, top) :] //= 3
    at = (4, picture.shape[0] - below - 2)
    cv2.putText(picture, text, at, FONT, size, (255, 255, 255), 1, cv2.LINE_AA)


def _name(labels: Sequence[str], number: int) -> str:
    return labels[number] if 0 <= number < len(labels) else str(number)


def _plain(text: str) -> str:
    """OpenCV's letters are those of ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:120])
