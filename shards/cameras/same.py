"""Whether two results decide the same, though their numbers differ a little. Pure."""

from __future__ import annotations

import numpy as np

from shards.cameras.boxes import overlaps
from shards.cameras.results import Classes, DepthGrid, Detections, Embedding, Segments, Text
from shards.cameras.task import Result

OVERLAP = 0.5  # of two boxes that stand for one object
PLACES = 0.99  # share of a picture's places with the same class
CORNERS = 0.01  # of the picture, between two boxes too thin to overlap
COSINE = 0.99
DEPTH = 0.05  # of a map's range, between two depths


def decides_the_same(one: Result, other: Result) -> bool:
    """The same objects: as many of each class, each box on one of the other's by half at least, or
    with all corners within a hundredth of the picture. The same likeliest class. The same class at
    99 % of all places. Depths that differ by a twentieth of their range at most, at 99 % of all
    places. The same text. Vectors in one direction, by a cosine of 0.99."""
    if isinstance(one, Detections) and isinstance(other, Detections):
        return _same_objects(one, other)
    if isinstance(one, Classes) and isinstance(other, Classes):
        return bool(one.classes[:1].tolist() == other.classes[:1].tolist())
    if isinstance(one, Segments) and isinstance(other, Segments):
        is_alike = one.classes.shape == other.classes.shape
        return bool(is_alike and (one.classes == other.classes).mean() >= PLACES)
    if isinstance(one, DepthGrid) and isinstance(other, DepthGrid):
        if one.values.shape != other.values.shape:
            return False
        apart = np.abs(one.values - other.values) <= DEPTH * np.ptp(one.values)
        return bool(apart.mean() >= PLACES)
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    if isinstance(one, Embedding) and isinstance(other, Embedding):
        if one.vector.shape != other.vector.shape:
            return False
        lengths = float(np.linalg.norm(one.vector) * np.linalg.norm(other.vector))
        return float(one.vector @ other.vector) >= COSINE * lengths
    return False


def _same_objects(one: Detections, other: Detections) -> bool:
    if sorted(one.classes.tolist()) != sorted(other.classes.tolist()):
        return False
    free = np.ones(len(other), bool)
    for box, kind in zip(one.boxes, one.classes, strict=True):
        is_near = np.abs(other.boxes - box).max(axis=1) <= CORNERS
        shared = np.where(is_near, 1, overlaps(box, other.boxes))
        shared = np.where(free & (other.classes == kind), shared, 0)
        best = int(shared.argmax())
        if shared[best] < OVERLAP:
            return False
        free[best] = False
    return True
