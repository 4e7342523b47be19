"""The same object in frame after frame: ids for boxes, by where each object goes. Pure.

    tracks, found = follow(tracks, found, now)

The association is that of OC-SORT (Cao et al., CVPR 2023, arXiv:2203.14360), without its weight on
directions, which gained nothing on the clips of `tests/bench/cameras/tracking.py`:

1. A Kalman filter of constant velocity predicts each track's box, so an object that moves on while
   nobody sees it is looked for where it has to be.
2. Boxes and predictions of one class are paired so that the sum of their overlaps is the largest
   (the Hungarian method).
3. What is left is paired by the overlap with the box that was last seen, where the prediction was
   wrong (OCR); and, of objects of the last frame, with wider boxes, since one that was seen once
   has no velocity yet (C-BIoU, Yang et al., WACV 2023, arXiv:2211.14317).
4. An object that was not seen for a while has gone there evenly: its velocity is set anew by both
   boxes that were seen (ORU, in one step).

A track that no box continues is kept for a while. No id is given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shards.cameras.boxes import overlaps
from shards.cameras.results import Detections

# Of a box's own width or height, so that all of it holds for objects of any size.
TREMBLE = 0.05  # a detector's error
FIRST_SPEED = 2.0  # a second, of an object that was seen once
RESTLESS = 1.5  # the change of the speed in a second
SHRINKS = 0.25  # of that, for width and height
WIDER = 1.0  # on each side of a box, for an object that has moved by more than its own size
MISSED = 6.5  # frames that an object may be unseen, at any rate
SLOWEST = 2.0  # seconds between two frames, beyond which they are two occasions


def _none(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float64)


@dataclass(frozen=True, slots=True)
class Tracks:
    """What is remembered of earlier frames: for each track its id, its last box [4], its class,
    when it was seen, in seconds, and what its filter knows at `now`: the box's centre and sides
    [n, 4], their change a second [n, 4], and their variances [n, 4, 3]: of the place, of both
    together, of the change. pause: the usual time between two frames. `next_id`: of the next new
    object."""

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seen: np.ndarray = field(default_factory=lambda: _none(0))
    places: np.ndarray = field(default_factory=lambda: _none(0, 4))
    speeds: np.ndarray = field(default_factory=lambda: _none(0, 4))
    spread: np.ndarray = field(default_factory=lambda: _none(0, 4, 3))
    now: float | None = None
    pause: float = 0.0
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
    for which an object may be unseen; six frames, where those take longer. most: tracks that are
    remembered, those seen last; an unmatched box beyond them gets an id for one frame.
    """
    tracks = _predicted(_current(tracks, now, patience), now)
    matched = _matched(tracks, found, least)
    fresh = np.nonzero(matched < 0)[0]
    given = np.zeros(len(found), np.int64)
    given[matched >= 0] = tracks.ids[matched[matched >= 0]]
    given[fresh] = tracks.next_id + np.arange(len(fresh))
    unseen = np.setdiff1d(np.arange(len(tracks)), matched)
    unseen = unseen[np.argsort(-tracks.seen[unseen], kind="stable")]
    places, speeds, spread = _corrected(tracks, found, matched, now)
    kept = Tracks(
        np.concatenate([given, tracks.ids[unseen]])[:most],
        np.concatenate([found.boxes, tracks.boxes[unseen]])[:most],
        np.concatenate([found.classes, tracks.classes[unseen]])[:most],
        np.concatenate([np.full(len(found), now), tracks.seen[unseen]])[:most],
        np.concatenate([places, tracks.places[unseen]])[:most],
        np.concatenate([speeds, tracks.speeds[unseen]])[:most],
        np.concatenate([spread, tracks.spread[unseen]])[:most],
        now,
        tracks.pause,
        tracks.next_id + len(fresh),
    )
    return kept, replace(found, ids=given)


# --- the filter ---------------------------------------------------------------------------


def _current(tracks: Tracks, now: float, patience: float) -> Tracks:
    """Without those that were unseen for too long."""
    pause = tracks.pause
    if tracks.now is not None:
        passed = min(max(0.0, now - tracks.now), SLOWEST)
        pause = passed if not pause else 0.7 * pause + 0.3 * passed
    stays = tracks.seen >= now - max(patience, MISSED * pause)
    return replace(
        tracks,
        ids=tracks.ids[stays],
        boxes=tracks.boxes[stays],
        classes=tracks.classes[stays],
        seen=tracks.seen[stays],
        places=tracks.places[stays],
        speeds=tracks.speeds[stays],
        spread=tracks.spread[stays],
        pause=pause,
    )


def _predicted(tracks: Tracks, now: float) -> Tracks:
    passed = 0.0 if tracks.now is None else max(0.0, now - tracks.now)
    restless = RESTLESS * _sizes(tracks.boxes) * (1, 1, SHRINKS, SHRINKS)
    place, both, speed = (tracks.spread[..., part] for part in range(3))
    noise = restless**2 * passed  # of a speed that changes at random
    spread = np.stack(
        [
            place + 2 * passed * both + passed**2 * speed + noise * passed**2 / 3,
            both + passed * speed + noise * passed / 2,
            speed + noise,
        ],
        axis=-1,
    )
    places = tracks.places + passed * tracks.speeds
    # What shrinks ends before it is nothing.
    places[:, 2:] = np.maximum(places[:, 2:], tracks.places[:, 2:] / 2)
    return replace(tracks, places=places, spread=spread)


def _corrected(
    tracks: Tracks, found: Detections, matched: np.ndarray, now: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, speeds and spread of the boxes that were found."""
    seen, error = _places(found.boxes), (TREMBLE * _sizes(found.boxes)) ** 2
    places, speeds = seen.copy(), np.zeros_like(seen)
    spread = np.stack([error, 0 * error, (FIRST_SPEED * _sizes(found.boxes)) ** 2], axis=-1)
    rows = np.nonzero(matched >= 0)[0]
    old = matched[rows]
    place, both, speed = (tracks.spread[old, :, part] for part in range(3))
    total = np.maximum(place + error[rows], np.finfo(float).tiny)
    wrong = seen[rows] - tracks.places[old]
    places[rows] = tracks.places[old] + place / total * wrong
    speeds[rows] = tracks.speeds[old] + both / total * wrong
    spread[rows, :, 0] = place - place * place / total
    spread[rows, :, 1] = both - place * both / total
    spread[rows, :, 2] = speed - both * both / total
    # Behind a gap the way between both sightings tells more than the filter's guesses.
    away = now - tracks.seen[old]
    gap = away > 1.5 * max(tracks.pause, 1e-9)
    moved = seen[rows] - _places(tracks.boxes[old])
    speeds[rows[gap]] = moved[gap] / away[gap, None]
    return places, speeds, spread


def _places(boxes: np.ndarray) -> np.ndarray:
    """Centres and sides, [n, 4]."""
    low, high = boxes[:, :2].astype(float), boxes[:, 2:].astype(float)
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _sizes(boxes: np.ndarray) -> np.ndarray:
    """The sides that a place's four numbers are measured by."""
    return np.tile(np.abs(_places(boxes)[:, 2:]), 2)


def _boxes(places: np.ndarray) -> np.ndarray:
    half = places[:, 2:] / 2
    return np.concatenate([places[:, :2] - half, places[:, :2] + half], axis=1)


# --- the association ----------------------------------------------------------------------


def _matched(tracks: Tracks, found: Detections, least: float) -> np.ndarray:
    """For each box the index of its track, -1 for a new object; no track twice."""
    matched = np.full(len(found), -1, np.intp)
    same = found.classes[:, None] == tracks.classes[None, :]
    predicted, last = _boxes(tracks.places), tracks.boxes
    just = np.full(len(tracks), tracks.now) - tracks.seen <= 1.5 * tracks.pause
    ways = (
        (found.boxes, predicted, np.ones(len(tracks), bool)),
        (found.boxes, last, np.ones(len(tracks), bool)),
        (_wider(found.boxes), _wider(predicted), just),
    )
    for ours, theirs, may in ways:
        rows = np.nonzero(matched < 0)[0]
        columns = np.setdiff1d(np.nonzero(may)[0], matched)
        if not len(rows) or not len(columns):
            continue
        shared = overlaps(ours[rows, None], theirs[columns])
        worth = np.where(same[np.ix_(rows, columns)] & (shared >= least), 1 + shared, 0)
        one, other = assigned(worth)
        matched[rows[one]] = columns[other]
    return matched


def _wider(boxes: np.ndarray) -> np.ndarray:
    """With a side more on each side."""
    places = _places(boxes)
    return _boxes(places * (1, 1, 1 + 2 * WIDER, 1 + 2 * WIDER))


def assigned(worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the pairs whose worth, [rows, columns], has the largest sum; a pair of
    no worth is none."""
    there = worth > 0
    # A pair whose row and column have no other one is in each best choice.
    lone = there & (there.sum(axis=1) == 1)[:, None] & (there.sum(axis=0) == 1)[None, :]
    ones, others = np.nonzero(lone)
    rows = np.nonzero((there & ~lone).any(axis=1))[0]
    columns = np.nonzero((there & ~lone).any(axis=0))[0]
    more, mores = _hungarian(worth[np.ix_(rows, columns)])
    return np.concatenate([ones, rows[more]]), np.concatenate([others, columns[mores]])


def _hungarian(worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By shortest augmenting paths (Jonker and Volgenant, Computing 38, 1987): O(rows² columns)."""
    if worth.shape[0] > worth.shape[1]:
        columns, rows = _hungarian(worth.T)
        return rows, columns
    count, width = worth.shape
    cost = np.concatenate([-worth, np.zeros((count, count))], axis=1)  # each row may stay alone
    row_price, price = np.zeros(count + 1), np.zeros(width + count + 1)
    owner = np.full(width + count + 1, count)  # of a column, and last of the row that looks for one
    for row in range(count):
        owner[-1], column = row, width + count
        nearest = np.full(width + count, np.inf)
        before = np.full(width + count, width + count)
        done = np.zeros(width + count + 1, bool)
        while owner[column] < count:
            done[column] = True
            ahead = cost[owner[column]] - row_price[owner[column]] - price[:-1]
            closer = ~done[:-1] & (ahead < nearest)
            nearest[closer], before[closer] = ahead[closer], column
            following = int(np.where(done[:-1], np.inf, nearest).argmin())
            step = nearest[following]
            row_price[owner[done]] += step
            price[done] -= step
            nearest[~done[:-1]] -= step
            column = following
        while column < width + count:
            owner[column], column = owner[before[column]], int(before[column])
    pairs = np.nonzero(owner[:width] < count)[0]
    pairs = pairs[worth[owner[pairs], pairs] > 0]
    return owner[pairs], pairs
