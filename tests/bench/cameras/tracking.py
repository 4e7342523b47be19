"""Ids of objects on made clips whose truth is known: HOTA, IDF1 and changed ids, by the tracker and
by overlap alone.

    uv run --isolated --no-project --python 3.11 --with numpy --with trackeval==1.3.0 \\
        python -m tests.bench.cameras.tracking

Objects of one class cross each other, and stand before each other; a detector trembles by 3 % of a
box, misses one box in twenty, five frames in a row now and then, whoever stands behind another one,
and sees one thing in ten frames that is not there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.cameras.boxes import overlaps
from shards.cameras.results import Detections
from shards.cameras.tracking import Tracks, follow

FRAMES = 300
TREMBLE, MISSED, BURST, FALSE, HIDDEN = 0.03, 0.05, 0.01, 0.1, 0.45


@dataclass(frozen=True)
class Clip:
    """truth: ids and boxes of each frame. found: what the detector says. rate: frames a second."""

    truth: list[tuple[np.ndarray, np.ndarray]]
    found: list[Detections]
    rate: float


def clip(seed: int, objects: int, rate: float) -> Clip:
    """Ten seconds or more of people who walk to and fro."""
    random = np.random.default_rng(seed)
    sides = random.uniform((0.05, 0.15), (0.1, 0.3), (objects, 2))
    places = random.uniform(sides / 2, 1 - sides / 2)
    speeds = random.uniform(0.05, 0.3, (objects, 2)) * random.choice((-1, 1), (objects, 2))
    speeds[:, 1] /= 4
    gone = np.zeros(objects, int)  # frames for which the detector misses an object
    truth, found = [], []
    for _ in range(FRAMES):
        speeds += random.normal(0, 0.2, (objects, 2)) * np.sqrt(1 / rate) * (0.3, 0.1)
        speeds = np.clip(speeds, (-0.35, -0.1), (0.35, 0.1))
        places += speeds / rate
        turned = (places < sides / 2) | (places > 1 - sides / 2)
        speeds = np.where(turned, np.abs(speeds) * np.sign(0.5 - places), speeds)
        boxes = np.concatenate([places - sides / 2, places + sides / 2], axis=1)
        truth.append((np.arange(objects), boxes))
        # Who is lower in the picture stands in front.
        front = np.argsort(-boxes[:, 3])
        seen = np.ones(objects, bool)
        for at, one in enumerate(front):
            before = [other for other in front[:at] if seen[other]]
            if before and overlaps(boxes[one], boxes[before]).max() > HIDDEN:
                seen[one] = False
        gone = np.where(random.random(objects) < BURST, 5, np.maximum(0, gone - 1))
        seen &= (gone == 0) & (random.random(objects) >= MISSED)
        trembled = boxes + random.normal(0, TREMBLE, boxes.shape) * np.tile(sides, 2)
        shown = trembled[seen]
        if random.random() < FALSE:
            left, top = random.uniform(0, 0.8, 2)
            shown = np.concatenate([shown, [[left, top, left + 0.07, top + 0.2]]])
        shown = shown[random.permutation(len(shown))]
        count = len(shown)
        found.append(
            Detections(
                shown.astype(np.float32), np.full(count, 0.8, np.float32), np.zeros(count, np.int64)
            )
        )
    return Clip(truth, found, rate)


class ByTracker:
    def __init__(self) -> None:
        self._tracks = Tracks()

    def ids(self, found: Detections, now: float) -> np.ndarray:
        self._tracks, found = follow(self._tracks, found, now)
        assert found.ids is not None
        return found.ids


class ByOverlap:
    """What stood here before: the best overlap with the box that was last seen, for one second."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, float]] = {}
        self._next = 1

    def ids(self, found: Detections, now: float) -> np.ndarray:
        known = {key: each for key, each in self._known.items() if each[1] >= now - 1.0}
        keys = list(known)
        pairs = [
            (float(share), row, key)
            for row, box in enumerate(found.boxes)
            for key, share in zip(
                keys,
                overlaps(box, np.stack([known[key][0] for key in keys])) if keys else (),
                strict=True,
            )
            if share >= 0.3
        ]
        given: dict[int, int] = {}
        for _, row, key in sorted(pairs, key=lambda pair: -pair[0]):
            if row not in given and key not in given.values():
                given[row] = key
        for row in range(len(found)):
            if row not in given:
                given[row], self._next = self._next, self._next + 1
            known[given[row]] = (found.boxes[row], now)
        self._known = known
        return np.array([given[row] for row in range(len(found))], np.int64)


def measured(made: Clip, tracker: ByTracker | ByOverlap) -> dict[str, float]:
    """By trackeval, of one clip."""
    import trackeval  # type: ignore[import-not-found]

    given = [tracker.ids(found, at / made.rate) for at, found in enumerate(made.found)]
    numbers = {each: at for at, each in enumerate(np.unique(np.concatenate(given)))}
    data: dict[str, Any] = {
        "num_timesteps": len(given),
        "num_gt_ids": len(made.truth[0][0]),
        "num_tracker_ids": len(numbers),
        "num_gt_dets": sum(len(ids) for ids, _ in made.truth),
        "num_tracker_dets": sum(len(ids) for ids in given),
        "gt_ids": [ids for ids, _ in made.truth],
        "tracker_ids": [np.array([numbers[each] for each in ids], int) for ids in given],
        "similarity_scores": [
            np.stack([overlaps(box, found.boxes) for box in boxes])
            if len(found)
            else np.zeros((len(boxes), 0))
            for (_, boxes), found in zip(made.truth, made.found, strict=True)
        ],
    }
    quiet = {"PRINT_CONFIG": False}
    hota = trackeval.metrics.HOTA().eval_sequence(data)
    identity = trackeval.metrics.Identity(quiet).eval_sequence(data)
    clear = trackeval.metrics.CLEAR(quiet).eval_sequence(data)
    return {
        "HOTA": 100 * float(hota["HOTA"].mean()),
        "AssA": 100 * float(hota["AssA"].mean()),
        "IDF1": 100 * float(identity["IDF1"]),
        "changes": float(clear["IDSW"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--clips", type=int, default=10)
    given = parser.parse_args()
    ways: dict[str, Callable[[], ByTracker | ByOverlap]] = {
        "tracker": ByTracker,
        "overlap": ByOverlap,
    }
    print(
        "| objects, frames/s | by | HOTA | AssA | IDF1 | changed ids |\n|---|---|---|---|---|---|"
    )
    for objects, rate in ((4, 30.0), (12, 30.0), (4, 10.0), (12, 10.0), (4, 5.0)):
        clips = [clip(given.first + at, objects, rate) for at in range(given.clips)]
        for name, make in ways.items():
            rows = [measured(each, make()) for each in clips]
            mean = {key: np.mean([row[key] for row in rows]) for key in rows[0]}
            print(
                f"| {objects}, {rate:g} | {name} | "
                + " | ".join(f"{v:.1f}" for v in mean.values())
                + " |"
            )


if __name__ == "__main__":
    main()
