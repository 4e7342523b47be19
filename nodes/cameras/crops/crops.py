"""Asks a second model for the objects of a frame: `--crops NAME`.

    boxes with ids ─► crop ─► as before? ─► the answer that it had, with its age
                                 └─ no ─► mesh ─► cache

Crops are cut from what has passed the door: a masked region is masked here, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import cv2
import numpy as np

from nodes.cameras.crops.cache import SIZE, CropCache, CropRule, KnownObject
from nodes.cameras.frame import told
from nodes.cameras.gate.measures import gray
from nodes.cameras.mask.door import Cleared, image_of
from nodes.cameras.picture_task import PictureTask, Tasks
from nodes.life.node import Node
from shards.cameras.results import Detections
from shards.errors import ShardsError
from swarm.errors import SwarmError

LEAST = 4  # pixels of an object's side; a smaller one is left out
FARTHEST = 2.0  # shares of the picture, of a corner outside of it
UPRIGHT = 1.5  # times as high as wide: text that runs upwards
_At = tuple[np.ndarray, np.ndarray | None]  # a box, and its corners where it is turned


class Crops:
    """Of one camera. most: objects of a frame that are looked at, those with the best scores. say:
    hears of a fault. in_pool: runs work on pixels in a thread, since the node's loop has other
    messages. counts: objects since the start, `asked` of the mesh, `kept` or `failed`."""

    def __init__(
        self,
        node: Node,
        model: str,
        rule: CropRule,
        most: int,
        say: Callable[[str], None],
        in_pool: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self.counts: Counter[str] = Counter(asked=0, kept=0, failed=0)
        self._node = node
        self._name, _, self._pinned = model.partition("@")
        self._most = most
        self._say = say
        self._in_pool = in_pool
        self._tasks = Tasks(node.mesh)
        self._cache = CropCache(rule)

    async def of(self, cleared: Cleared, found: Detections) -> list[dict[str, Any]]:
        """A document for each object that was looked at: its `id`, what the model found, and the
        `age_ms` of an answer that stands. Tracked objects only. Never raises for the mesh."""
        if found.ids is None or not len(found):
            return []
        image = image_of(cleared)
        best = np.argsort(-found.scores, kind="stable")[: self._most]
        try:
            version = self._pinned or await self._node.mesh.catalog.version_for(
                self._name, self._node.id, "", "crops"
            )
            task = await self._tasks.of(self._name, version)
        except (SwarmError, ShardsError) as error:
            self._say(f"--crops {self._name}: {error}")
            return []
        corners = [None] * len(found) if found.corners is None else found.corners
        looked = (
            self._look(task, version, image, (found.boxes[at], corners[at]), int(found.ids[at]))
            for at in best
        )
        documents = await asyncio.gather(*looked)
        return [each for each in documents if each is not None]

    async def _look(
        self, task: PictureTask, version: str, image: np.ndarray, at: _At, track: int
    ) -> dict[str, Any] | None:
        now = time.monotonic()
        known, crop = await self._in_pool(partial(self._seen, image, at, track, version, now))
        if known is not None:
            self.counts["kept"] += 1
            return {"id": track, **known.found, "age_ms": round((now - known.at) * 1e3, 3)}
        if crop is None:
            return None
        budget = self._node.config.budget
        try:
            inputs = await self._in_pool(partial(task.prepare, crop))
            result = await self._node.mesh.infer(self._name, inputs, budget, version=version)
            answer = told(task.read(result.outputs, crop.shape), result.outputs)
        except (SwarmError, ShardsError, ValueError) as error:
            self.counts["failed"] += 1
            self._say(f"--crops {self._name}: {error}")
            return None
        self.counts["asked"] += 1
        self._cache.keep(track, KnownObject(at[0], gray(crop, SIZE), version, answer, now))
        return {"id": track, **answer}

    def _seen(
        self, image: np.ndarray, at: _At, track: int, version: str, now: float
    ) -> tuple[KnownObject | None, np.ndarray | None]:
        """What stands for an object, and its pixels; neither for a box of hardly any."""
        box, corners = at
        crop = cut(image, box, corners)
        if crop is None:
            return None, None
        compared = partial(reduced, image, corners=corners)
        return self._cache.answer(track, box, compared, version, now), crop


def reduced(
    image: np.ndarray, box: np.ndarray, corners: np.ndarray | None = None
) -> np.ndarray | None:
    """A box's crop as the cache compares it; None for a box of hardly any pixels."""
    crop = cut(image, box, corners)
    return None if crop is None else gray(crop, SIZE)


def cut(image: np.ndarray, box: np.ndarray, corners: np.ndarray | None = None) -> np.ndarray | None:
    """The pixels of a box, uint8 [height, width, 3]; None for a box of hardly any, or of no
    place. box: left, top, right, bottom as shares of the picture. corners: [4, 2] of a turned box,
    see `shards.cameras.results.Detections`: its pixels are turned upright."""
    if corners is not None:
        return straightened(image, corners)
    if not np.isfinite(box).all():
        return None
    height, width = image.shape[:2]
    corners = np.clip(box, 0, 1) * np.array([width, height, width, height])
    left, top, right, bottom = np.rint(corners).astype(int)
    if right - left < LEAST or bottom - top < LEAST:
        return None
    return np.ascontiguousarray(image[top:bottom, left:right])


def straightened(image: np.ndarray, corners: np.ndarray) -> np.ndarray | None:
    """The pixels of a turned box, its first corner at the upper left; one that is much higher than
    wide is laid on its side, as readers of text expect it. None as for `cut`."""
    height, width = image.shape[:2]
    if not np.isfinite(corners).all() or np.abs(corners).max() > FARTHEST:
        return None
    pixels = (corners * np.array([width, height])).astype(np.float32)
    sides = np.linalg.norm(pixels - np.roll(pixels, -1, axis=0), axis=1)
    wide, high = round(float(max(sides[0], sides[2]))), round(float(max(sides[1], sides[3])))
    if min(wide, high) < LEAST:
        return None
    goal = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32)
    crop = cv2.warpPerspective(
        image,
        cv2.getPerspectiveTransform(pixels, goal),
        (wide, high),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    if high >= UPRIGHT * wide:
        crop = np.rot90(crop)
    return np.ascontiguousarray(crop)
