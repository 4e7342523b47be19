"""A frame as sources give it, and the source: what the rest of the room is built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class FrameSource(Protocol):
    """Frames of one camera, the latest only: a slow consumer never gets an old frame.

    `arrived` and `latest` are called by one consumer. A source that fails tries again by itself,
    with backoff, and says so in `status`; it never ends a node.
    """

    name: str

    @property
    def waits(self) -> bool:
        """Whether no frame gives way to another one, so that all are given, in their order."""
        ...

    async def arrived(self) -> bool:
        """Wait until a frame is there that was not given yet. False at the end of a file."""
        ...

    async def latest(self) -> Frame | None:
        """The newest frame that was not given yet: waits for one. None at the end of a file."""
        ...

    def status(self) -> dict[str, object]:
        """`name`, `state` (`running`, `waiting`, `failed`, `ended`), `frames` that came, `dropped`,
        `passed` (over, by `--rate`), `torn` (packets and files that were no picture), `decode_ms`,
        `reconnects`, `error`."""
        ...

    async def close(self) -> None:
        """Give the device or the connection back. May be called twice."""
        ...


# Values of an answer that are told where its model declares no task: 4 KB as text. A larger answer
# is asked for by name: `swarm.connect`.
MOST_VALUES = 512


def told(found: Result | None, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a result. found: as the model's task reads it, None where it has none."""
    if found is not None:
        return document(found)
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if sum(array.size for array in outputs.values()) > MOST_VALUES:
        return {"shapes": shapes}
    return {"outputs": {name: array.tolist() for name, array in outputs.items()}}
