"""The same object in frame after frame: ids for boxes, by how much they overlap. Pure.

    tracks, found = follow(tracks, found, now)

Each box goes on the track of its class that it overlaps most; the best pairs choose first. A track
that no box continues is kept for a while, where it was last seen. No id is given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shards.task.boxes import overlaps
from shards.task.results import Detections


@dataclass(frozen=True, slots=True)
class Tracks:
    """What is remembered of earlier frames: for each track its id, its last box [4], its class, and
    when it was seen, in seconds. `next_id`: of the next new object."""

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float64))
    next_id: int = 1

    def __len__(self) -> int:
        return len(self.ids)


def follow(
    tracks: Tracks,
    found: Detections,
    now: float,
    *,
    least: float = 0.3,
    patience: float = 1.0,
    most: int = 1024,
) -> tuple[Tracks, Detections]:
    """The tracks behind a frame, and its boxes with their ids.

    now: when the frame was captured, in seconds of any clock that does not go back. least: the
    overlap (intersection over union, 0..1) from which two boxes are one object. patience: seconds
    for which an object may be unseen. most: tracks that are remembered, those seen last; an
    unmatched box beyond them gets an id for one frame.
    """
    current = tracks.seen >= now - patience
    ids, boxes = tracks.ids[current], tracks.boxes[current]
    classes, seen = tracks.classes[current], tracks.seen[current]
    matched = _matched(boxes, classes, found, least)
    fresh = np.nonzero(matched < 0)[0]
    given = np.zeros(len(found), np.int64)
    given[matched >= 0] = ids[matched[matched >= 0]]
    given[fresh] = tracks.next_id + np.arange(len(fresh))
    unseen = np.setdiff1d(np.arange(len(ids)), matched)
    unseen = unseen[np.argsort(-seen[unseen], kind="stable")]
    kept = Tracks(
        np.concatenate([given, ids[unseen]])[:most],
        np.concatenate([found.boxes, boxes[unseen]])[:most],
        np.concatenate([found.classes, classes[unseen]])[:most],
        np.concatenate([np.full(len(found), now), seen[unseen]])[:most],
        tracks.next_id + len(fresh),
    )
    return kept, replace(found, ids=given)


def _matched(boxes: np.ndarray, classes: np.ndarray, found: Detections, least: float) -> np.ndarray:
    """For each box the index of its track, -1 for a new object; no track twice."""
    matched = np.full(len(found), -1, np.intp)
    if not len(boxes) or not len(found):
        return matched
    shared = np.stack([overlaps(box, boxes) for box in found.boxes])
    shared[found.classes[:, None] != classes[None, :]] = 0
    rows, columns = np.nonzero(shared >= least)
    free = np.ones(len(boxes), bool)
    for pair in np.argsort(-shared[rows, columns], kind="stable"):
        row, column = rows[pair], columns[pair]
        if matched[row] < 0 and free[column]:
            matched[row] = column
            free[column] = False
    return matched
