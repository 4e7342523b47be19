"""What a head tells beside a box: keypoints, the corners of a turned box, a mask. Pure."""

from __future__ import annotations

import numpy as np

from shards.cameras.decode import Raw
from shards.cameras.placement import PlacedPicture
from shards.cameras.results import Masks
from shards.errors import InputError

_LEAST = 1e-7  # keeps divisions and logarithms finite, as in the source of `likeness`


def points_of(more: np.ndarray, each: int, size: tuple[int, int]) -> np.ndarray:
    """[n, k, 3]: x and y as shares of the model's picture, and how likely the point is seen (1
    where the network does not say). more: [n, k * each] in pixels. each: 2 or 3."""
    points = more.reshape(len(more), -1, each).astype(np.float32)
    if each == 2:
        points = np.concatenate([points, np.ones_like(points[..., :1])], axis=2)
    return np.asarray(points / np.array([*size, 1], np.float32))


def corners_of(boxes: np.ndarray, angles: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[n, 4, 2], clockwise as one sees it, shares of the model's picture: boxes [n, 4] (left, top,
    right, bottom in shares) turned by `angles` [n] in radians around their centres, in pixels."""
    pixels = boxes * np.array([*size, *size], np.float32)
    centre, half = (pixels[:, :2] + pixels[:, 2:]) / 2, (pixels[:, 2:] - pixels[:, :2]) / 2
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    across = half[:, :1] * np.concatenate([cos, sin], axis=1)
    down = half[:, 1:] * np.concatenate([-sin, cos], axis=1)
    found = [centre - across - down, centre + across - down]
    found += [centre + across + down, centre - across + down]
    return np.asarray(np.stack(found, axis=1) / np.array(size), np.float32)


def hull(corners: np.ndarray) -> np.ndarray:
    """The upright boxes [n, 4] around [n, 4, 2]."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def turned_that_stay(raw: Raw, size: tuple[int, int], iou: float, top: int) -> Raw:
    """The turned boxes of which none is like a likelier one of its class by more than `iou`; one
    that is dropped drops others all the same, as in Ultralytics. raw: all above the threshold."""
    pixels = raw.boxes * np.array([*size, *size], np.float32)
    sides = pixels[:, 2:] - pixels[:, :2]
    centres = pixels[:, :2] + sides / 2
    spread = _covariance(sides, raw.more[:, 0])
    stays = np.ones(len(raw.scores), bool)
    for at in range(1, len(stays)):
        before = np.nonzero(raw.classes[:at] == raw.classes[at])[0]
        alike = likeness(centres[at] - centres[before], spread[:, at, None], spread[:, before])
        stays[at] = not (alike > iou).any()
    rows = np.nonzero(stays)[0][:top]
    return Raw(raw.boxes[rows], raw.scores[rows], raw.classes[rows], raw.more[rows])


def likeness(apart: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How alike turned boxes are, 0..1: 1 less the Hellinger distance of normal distributions with
    their centres and sides (J. M. Llerena et al., "ProbIoU", 2021). apart: [n, 2], between centres.
    one, other: [3, n], see `_covariance`."""
    a, b, c = one + other
    x, y = apart.T
    size = a * b - c * c + _LEAST
    distance = (a * y * y + b * x * x) / size / 4 - c * x * y / size / 2
    own = [np.maximum(s[0] * s[1] - s[2] * s[2], 0) for s in (one, other)]
    ratio = (a * b - c * c) / (4 * np.sqrt(own[0] * own[1]) + _LEAST) + _LEAST
    distance = np.clip(distance + np.log(ratio) / 2, _LEAST, 100)
    return np.asarray(1 - np.sqrt(1 - np.exp(-distance) + _LEAST))


def _covariance(sides: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """[3, n]: xx, yy, xy of a uniform distribution over boxes with these sides [n, 2]."""
    wide, high = (sides.astype(np.float32) ** 2 / 12).T
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack(
        [wide * cos**2 + high * sin**2, wide * sin**2 + high * cos**2, (wide - high) * cos * sin]
    )


def masks_of(
    raw: Raw, prototypes: np.ndarray, size: tuple[int, int], placed: PlacedPicture
) -> Masks:
    """The masks of boxes, on those pixels of the model's picture that the picture covers: where the
    weighted sum of the prototypes [1, m, h, w] is above 0, enlarged linearly, inside of the box.
    Raises InputError."""
    width, height = size
    if prototypes.ndim != 4 or prototypes.shape[:2] != (1, raw.more.shape[1]):
        raise InputError("prototypes", f"[1,{raw.more.shape[1]},h,w]", str(list(prototypes.shape)))
    parts = prototypes[0].astype(np.float32)
    down, across = _linear(parts.shape[1], height), _linear(parts.shape[2], width)
    counts = []
    for weights, box in zip(raw.more, raw.boxes, strict=True):
        edges = np.ceil(np.clip(box, 0, 1) * np.array([width, height, width, height])).astype(int)
        left, top, right, bottom = edges
        mask = np.zeros((height, width), bool)
        if right > left and bottom > top:
            rows, columns = _touched(down[top:bottom]), _touched(across[left:right])
            small = np.tensordot(weights, parts[:, rows, columns], axes=1)
            large = down[top:bottom, rows] @ small @ across[left:right, columns].T
            mask[top:bottom, left:right] = large > 0
        counts.append(runs(placed.part(mask)))
    return Masks((placed.height, placed.width), tuple(counts))


def _touched(shares: np.ndarray) -> slice:
    """The places of which any row has a share."""
    places = np.nonzero(shares.any(axis=0))[0]
    return slice(int(places[0]), int(places[-1]) + 1)


def _linear(have: int, want: int) -> np.ndarray:
    """[want, have]: a row's shares of the places that it lies between, by their centres."""
    at = np.clip((np.arange(want) + 0.5) * (have / want) - 0.5, 0, have - 1)
    low = np.floor(at).astype(int)
    share = (at - low).astype(np.float32)
    matrix = np.zeros((want, have), np.float32)
    rows = np.arange(want)
    matrix[rows, low] += 1 - share
    matrix[rows, np.minimum(low + 1, have - 1)] += share
    return matrix


def runs(mask: np.ndarray) -> np.ndarray:
    """The lengths of runs of a mask [h, w], column by column, the first one of what is left out:
    COCO's form."""
    flat = mask.T.reshape(-1)
    ends = np.nonzero(np.diff(flat))[0] + 1
    bounds = np.concatenate([[0], ends, [len(flat)]])
    lengths = np.diff(bounds)
    return np.concatenate([[0], lengths]) if len(flat) and flat[0] else lengths
