"""Pictures in files: their sizes are read before they are decoded."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import cv2
import numpy as np

from nodes.perception.sources.address import PICTURES
from nodes.perception.sources.feed import BadPicture, Taken, check_size
from swarm.errors import InvalidArgument

MOST_BYTES = 256 << 20  # of a file: an uncompressed picture of the most pixels has less
# JPEG, ITU T.81 table B.1: the markers SOF0 to SOF15, without DHT (C4), JPG (C8) and DAC (CC).
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


class PictureFeed:
    """A `Feed` of the pictures of a folder, by name, or of one file; at `rate` a second, or as
    fast as they are taken where it is 0. Raises `InvalidArgument` for a folder without pictures."""

    def __init__(self, where: str, rate: float) -> None:
        path = Path(where)
        self._folder = path if path.is_dir() else path.parent
        # Names, not paths or entries: 100 000 of them are some 10 MB.
        self._names = sorted(_names(path)) if path.is_dir() else [path.name]
        if not self._names:
            raise InvalidArgument(f"{where} has no pictures: {', '.join(PICTURES)}")
        self._pause = 1 / rate if rate else 0.0
        self._next = 0
        self._due = time.monotonic()

    def read(self) -> Taken | None:
        if self._next >= len(self._names):
            return None
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(now, self._due + self._pause)
        path = self._folder / self._names[self._next]
        self._next += 1
        return Taken(lambda: read_picture(path), time.monotonic())

    def close(self) -> None:
        self._names = []


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [each.name for each in entries if each.name.lower().endswith(PICTURES)]


def read_picture(path: Path) -> np.ndarray:
    """A file's pixels, [height, width, 3], uint8, RGB, turned as its EXIF says. Raises
    `BadPicture`."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadPicture(f"{path.name}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise BadPicture(f"{path.name} has more than {MOST_BYTES} bytes")
    try:
        return pixels_of(data)
    except BadPicture as error:
        raise BadPicture(f"{path.name}: {error}") from None


def pixels_of_jpeg(data: bytes) -> np.ndarray:
    """As `pixels_of`, of a camera's packet, which is a JPEG and nothing else."""
    if not data.startswith(b"\xff\xd8"):
        raise BadPicture("a packet is no JPEG")
    return pixels_of(data)


def pixels_of(data: bytes) -> np.ndarray:
    """A JPEG's, PNG's or BMP's pixels, [height, width, 3], uint8, RGB. Raises `BadPicture`; for
    too many pixels before any is decoded."""
    check_size(*size_of(data))
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise BadPicture(f"it cannot be decoded: {error.err}") from None
    if image is None:
        raise BadPicture("it cannot be decoded: it is cut short or spoilt")
    return image


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height, by the header alone. Raises `BadPicture` for what is none of the three."""
    try:
        if data.startswith(b"\xff\xd8"):
            return _size_of_jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            width, height = struct.unpack_from(">II", data, 16)
            return width, height
        if data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            return width, abs(height)
    except (struct.error, IndexError):
        raise BadPicture("it is cut short") from None
    raise BadPicture("it is neither JPEG nor PNG nor BMP")


def _size_of_jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise BadPicture("a JPEG without a size")
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes before a marker
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in _SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
