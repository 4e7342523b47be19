"""The seam of a source: pictures one after the other, read by a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from swarm.errors import SwarmError, Unavailable

# A picture of more pixels is refused before it is decoded: 64 million are 192 MB. The largest
# sensors of cameras for devices have that many; a header can name any number.
MOST_PIXELS = 64_000_000


class CameraLost(Unavailable):
    """A source gives no pictures at present; it is opened anew after a pause."""


class BadPicture(SwarmError):
    """One packet or file that is no picture of a size that is taken; the next one may be."""


@dataclass(frozen=True, slots=True)
class TakenPicture:
    """A picture as it came. pixels(): [height, width, 3], uint8, RGB; called at most once, from
    any thread; raises `BadPicture`. captured, file, at: as of `Frame`. spent: seconds of decoding
    so far."""

    pixels: Callable[[], np.ndarray]
    captured: float
    spent: float = 0.0
    file: str = ""
    at: float | None = None


class CameraFeed(Protocol):
    """An open camera. Everything is called by one thread. ends: whether it has an end, as files
    have, and can wait for its consumer. polls: whether it keeps to `--rate` by itself."""

    ends: bool
    polls: bool

    def read(self) -> TakenPicture | None:
        """The next picture; None at the end. Blocks for some seconds at the most. Raises
        `CameraLost`, `BadPicture`."""
        ...

    def close(self) -> None: ...


def check_size(width: int, height: int) -> None:
    """Raises `BadPicture` for a picture without pixels, or with too many."""
    if width <= 0 or height <= 0:
        raise BadPicture(f"a picture of {width} x {height} pixels")
    if width * height > MOST_PIXELS:
        raise BadPicture(f"a picture of {width} x {height} pixels: {MOST_PIXELS} are taken")
