"""Pictures in files: their sizes are read before they are decoded."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import numpy as np

from nodes.cameras.sources.feed import MOST_PIXELS, BadPicture, TakenPicture
from shards.cameras.picture import SUFFIXES, decode_picture, read_picture
from shards.errors import PictureError
from swarm.errors import InvalidArgument

USUAL_RATE = 30.0  # pictures a second, where a folder plays as a camera does


class PictureFeed:
    """A `CameraFeed` of the pictures of a folder, by name, or of one file; at `rate` a second, or
    as fast as they are taken where it is 0. plays: at its own pace, whatever its consumer does.
    Raises `InvalidArgument` for a folder without pictures."""

    ends = polls = True

    def __init__(self, where: str, rate: float, plays: bool) -> None:
        path = Path(where)
        self._folder = path if path.is_dir() else path.parent
        # Names, not paths or entries: 100 000 of them are some 10 MB.
        self._names = sorted(_names(path)) if path.is_dir() else [path.name]
        if not self._names:
            raise InvalidArgument(f"{where} has no pictures: {', '.join(SUFFIXES)}")
        self._step = 1 / (rate or USUAL_RATE)
        self._pause = self._step if rate or plays else 0.0
        self._next = 0
        self._due = time.monotonic()

    def read(self) -> TakenPicture | None:
        if self._next >= len(self._names):
            return None
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(now, self._due + self._pause)
        path = self._folder / self._names[self._next]
        at = self._next * self._step
        self._next += 1
        return TakenPicture(partial(_pixels_at, path), time.monotonic(), file=path.name, at=at)

    def close(self) -> None:
        self._names = []


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [each.name for each in entries if each.name.lower().endswith(SUFFIXES)]


def _pixels_at(path: Path) -> np.ndarray:
    try:
        return read_picture(path, most_pixels=MOST_PIXELS)
    except PictureError as error:
        raise BadPicture(str(error).removeprefix(f"{path.parent}{os.sep}")) from None


def pixels_of_jpeg(data: bytes) -> np.ndarray:
    """As `pixels_of`, of a camera's packet, which is a JPEG and nothing else."""
    if not data.startswith(b"\xff\xd8"):
        raise BadPicture("a packet is no JPEG")
    return pixels_of(data)


def pixels_of(data: bytes) -> np.ndarray:
    """A picture's pixels, [height, width, 3], uint8, RGB. Raises `BadPicture`; for too many pixels
    before any is decoded, and for AVIF, whose header may tell another size than its pictures have:
    from a network that would take any memory."""
    if data[4:8] == b"ftyp":
        raise BadPicture("it is AVIF, which is read of files alone")
    try:
        return decode_picture(data, name="it", most_pixels=MOST_PIXELS)
    except PictureError as error:
        raise BadPicture(str(error)) from None
