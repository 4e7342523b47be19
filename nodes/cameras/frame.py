"""A frame as sources give it, and its result: what the rest of the room is built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.cameras import Result, document


@dataclass(frozen=True, slots=True)
class Frame:
    """image: [height, width, 3], uint8, RGB, C order; nobody writes into it. captured: when the
    light fell in, or where the source cannot tell, when the frame arrived; `time.monotonic()`
    of this machine, in seconds. sequence: counts the source's frames, dropped ones too. source:
    the name of the camera. decode_ms: from the packet to the image, in milliseconds. file: the name
    of the file that it is from, "" for a camera. at: seconds since the beginning of what has an
    end, None for a camera."""

    image: np.ndarray
    captured: float
    sequence: int
    source: str = ""
    decode_ms: float = 0.0
    file: str = ""
    at: float | None = None

    @property
    def moment(self) -> float:
        """By the source's own clock, in seconds: what moves in a file moves by the file's time."""
        return self.captured if self.at is None else self.at


MOST_VALUES = 512


def told(found: Result | None, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a result. found: as the model's task reads it, None where it has none."""
    if found is not None:
        return document(found)
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if sum(array.size for array in outputs.values()) > MOST_VALUES:
        return {"shapes": shapes}
    return {"outputs": {name: array.tolist() for name, array in outputs.items()}}
