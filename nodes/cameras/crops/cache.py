"""Which objects have to be looked at again: an answer stands for an object that looks as before.

Pure. A crop is compared with the one that was last computed, never with the last one seen: beside
that a slow change would never be a change. A detector's boxes tremble, so an object that stands
still is also looked at where it was when it was computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nodes.cameras.gate.measures import ssim_map
from shards.cameras.boxes import overlaps

SIZE = (48, 48)  # width and height of the crops that are compared
NEAR = 0.5  # the least overlap (IoU) with which an object may be where it was

Reduce = Callable[[np.ndarray], np.ndarray | None]  # a box [4] -> its crop, gray uint8 of SIZE


@dataclass(frozen=True, slots=True)
class CropRule:
    """alike: the least mean similarity (SSIM, 0..1) of two crops of one object. oldest: seconds for
    which an answer stands. most: objects that are remembered."""

    alike: float = 0.95
    oldest: float = 10.0
    most: int = 256


@dataclass(frozen=True, slots=True)
class KnownObject:
    """An object as it was last computed. box: left, top, right, bottom as shares of the picture.
    crop: gray uint8 of `SIZE`. version: of the model that answered. found: its answer as a
    document. at: seconds."""

    box: np.ndarray
    crop: np.ndarray
    version: str
    found: dict[str, Any]
    at: float


class CropCache:
    """The objects of one camera, by the ids of their tracks."""

    def __init__(self, rule: CropRule) -> None:
        self.rule = rule
        self._known: dict[int, KnownObject] = {}

    def __len__(self) -> int:
        return len(self._known)

    def answer(
        self, track: int, box: np.ndarray, reduced: Reduce, version: str, now: float
    ) -> KnownObject | None:
        """What stands for this object; None where it has to be computed. reduced: of the frame."""
        known = self._known.get(track)
        if known is None or known.version != version or now - known.at > self.rule.oldest:
            return None
        is_near = float(overlaps(box, known.box[None])[0]) >= NEAR
        for place in (known.box, box) if is_near else (box,):
            crop = reduced(place)
            if crop is not None and float(ssim_map(known.crop, crop).mean()) >= self.rule.alike:
                return known
        return None

    def keep(self, track: int, known: KnownObject) -> None:
        """Remember a computed object. Of too many, the one that was computed first is forgotten."""
        self._known.pop(track, None)
        while len(self._known) >= self.rule.most:
            del self._known[next(iter(self._known))]
        self._known[track] = known
