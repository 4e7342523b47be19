"""The same objects in the boxes of several cameras. Pure, apart from the file of `--match`.

    boxes of left ─┐  by class, or by where each box stands on
    boxes of right ┴► a plane that both cameras see (the floor)  ─► objects, with from whom

A homography takes a place in a camera's picture to the plane (Hartley and Zisserman, Multiple View
Geometry, 4.1). A box stands on the middle of its lower edge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nodes.cameras.join.pairing import View
from shards.cameras.tracking import assigned
from swarm.errors import InvalidArgument

BY_CLASS = "class"
WITHIN = "within"
FAR = 1e6  # beyond every picture
MOST_BOXES = 1000  # of one edge


@dataclass(frozen=True)
class Plane:
    """matrices: by edge, [3, 3], from shares of its picture to places of the plane. within: the
    longest distance of two views of one object, in the plane's unit."""

    matrices: Mapping[str, np.ndarray]
    within: float

    @classmethod
    def of(cls, path: str, edges: Sequence[str]) -> Plane:
        """Of a JSON file: `{"within": 0.5, "left": POINTS, "right": POINTS}`, where POINTS are four
        rows or more of `[x, y, X, Y]`: x and y as shares of the picture from its upper left corner,
        and where that is in the plane. Raises `InvalidArgument`."""
        try:
            told = json.loads(Path(path).read_text(encoding="utf-8"))
            within = float(told[WITHIN])
            matrices = {edge: _matrix(np.array(told[edge], float)) for edge in edges}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidArgument(
                f"--match {path}: {why}: it is `class`, or a JSON file of "
                '{"within": DISTANCE, EDGE: [[x, y, X, Y], …]} with each edge of --of'
            ) from None
        if not 0 < within < math.inf:
            raise InvalidArgument(f"--match {path}: within is {within:g}, not a distance")
        return cls(matrices, within)

    def place(self, edge: str, box: Sequence[float]) -> np.ndarray:
        """Where a box stands, [2]; not finite for one beyond the horizon."""
        x, y, scale = self.matrices[edge] @ ((box[0] + box[2]) / 2, box[3], 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.array([x, y]) / (scale if scale > 0 else np.nan)


def plane_of(match: str, edges: Sequence[str]) -> Plane | None:
    """Of `--match`, None for `class`. Raises `InvalidArgument`."""
    return None if match == BY_CLASS else Plane.of(match, edges)


def joined(
    edges: Sequence[str], moment: Mapping[str, View], plane: Plane | None
) -> list[dict[str, Any]]:
    """The objects of a moment, each with `from`: by edge, what that one said of it. Raises
    `InvalidArgument` for a result without boxes.

    By class alone nothing tells which of several are the same: an entry is a class, `from` has all
    boxes of each edge, and `count` is the most that one edge sees.
    """
    seen = {edge: _detections(edge, moment[edge].result) for edge in edges if edge in moment}
    return _by_class(seen) if plane is None else _by_place(seen, plane)


def _by_class(seen: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for edge, rows in seen.items():
        for row in rows:
            fresh = {"label": row["label"], "class": row["class"], "from": {}}
            found.setdefault(row["class"], fresh)["from"].setdefault(edge, []).append(_said(row))
    for each in found.values():
        each["count"] = max(map(len, each["from"].values()))
        each["score"] = max(row["score"] for rows in each["from"].values() for row in rows)
    return list(found.values())


def _by_place(seen: Mapping[str, list[dict[str, Any]]], plane: Plane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    places: list[list[np.ndarray]] = []  # of each object, by whoever sees it
    for edge, rows in seen.items():
        stand = [plane.place(edge, row["box"]) for row in rows]
        middles = [np.mean(each, axis=0) for each in places]
        away = np.array(stand).reshape(-1, 1, 2) - np.array(middles).reshape(1, -1, 2)
        far = np.linalg.norm(away, axis=2) / plane.within
        kinds = [[row["class"] == other["class"] for other in found] for row in rows]
        same = np.array(kinds, bool).reshape(far.shape)
        worth = np.where(same & (far <= 1), 2 - far, 0)
        pairs = dict(zip(*(each.tolist() for each in assigned(worth)), strict=True))
        for at, row in enumerate(rows):
            number = pairs.get(at, len(found))
            if number == len(found):
                found.append({"label": row["label"], "class": row["class"], "from": {}})
                places.append([])
            found[number]["from"][edge] = _said(row)
            places[number].append(stand[at])
    for each, where in zip(found, places, strict=True):
        each["score"] = max(row["score"] for row in each["from"].values())
        place = np.mean(where, axis=0)
        each["place"] = place.round(5).tolist() if np.isfinite(place).all() else None
    return found


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("box", "score", "id") if key in row}


def _detections(edge: str, line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Raises `InvalidArgument`."""
    rows = line.get("detections")
    if not isinstance(rows, list) or not all(map(_is_detection, rows)):
        raise InvalidArgument(f"{edge}: a result without boxes: --match is for edges of detectors")
    if len(rows) > MOST_BOXES:
        raise InvalidArgument(f"{edge}: a result of {len(rows)} boxes, of {MOST_BOXES} at most")
    return rows


def _is_detection(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("label"), str):
        return False
    box, kind = row.get("box"), row.get("class")
    numbers = [*box, row.get("score")] if isinstance(box, list) and len(box) == 4 else [None]
    if isinstance(kind, bool) or not isinstance(kind, int):
        return False
    return all(
        isinstance(each, int | float) and not isinstance(each, bool) and -FAR < each < FAR
        for each in numbers
    )


def _matrix(points: np.ndarray) -> np.ndarray:
    """[3, 3], the homography of point pairs [n, 4], by the direct linear transform; positive in
    front of the camera. Raises `ValueError`."""
    if points.ndim != 2 or points.shape[1] != 4 or len(points) < 4 or not np.isfinite(points).all():
        raise ValueError("an edge has four rows or more of [x, y, X, Y]")
    from_here, to_there = _scaled(points[:, :2]), _scaled(points[:, 2:])
    rows = []
    for (x, y), (u, v) in zip(from_here.points, to_there.points, strict=True):
        rows.append([-x, -y, -1, 0, 0, 0, u * x, u * y, u])
        rows.append([0, 0, 0, -x, -y, -1, v * x, v * y, v])
    _, sizes, ways = np.linalg.svd(np.array(rows))
    if sizes[7] < 1e-6 * sizes[0]:
        raise ValueError("three of an edge's four points lie on a line, or two are the same")
    matrix = np.linalg.inv(to_there.matrix) @ ways[-1].reshape(3, 3) @ from_here.matrix
    scales = np.column_stack([points[:, :2], np.ones(len(points))]) @ matrix[2]
    if np.abs(np.linalg.det(matrix)) < 1e-12 or scales.min() * scales.max() <= 0:
        raise ValueError(
            "an edge's points are of no plane in front of it: are two of them swapped?"
        )
    return np.asarray(matrix * np.sign(scales[0]))


@dataclass(frozen=True)
class _Scaled:
    points: np.ndarray
    matrix: np.ndarray


def _scaled(points: np.ndarray) -> _Scaled:
    """Points [n, 2] about their middle, so that sums of their products lose no digits."""
    middle = points.mean(axis=0)
    size = max(float(np.abs(points - middle).max()), 1e-12)
    matrix = np.array(
        [[1 / size, 0, -middle[0] / size], [0, 1 / size, -middle[1] / size], [0, 0, 1]]
    )
    return _Scaled((points - middle) / size, matrix)
