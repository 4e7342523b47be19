"""Pictures from files: the size is read from the header first, so that a small file of a huge
picture is refused before memory is taken for it.

The orientation that EXIF gives is applied, so boxes fit the picture as people see it. Everything
else that a file holds beside pixels is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shards.errors import PictureError

MOST_PIXELS = 64_000_000
MOST_BYTES = 256 << 20  # of a file
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".avif")
FORMS = "JPEG, PNG, BMP, WebP, GIF, TIFF or AVIF"
# Start of frame: the JPEG markers that a height and a width follow (ITU T.81, table B.1).
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_AVIF_BRANDS = (b"avif", b"avis", b"mif1", b"msf1")
_JPEG_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def read_picture(path: str | Path, *, most_pixels: int = MOST_PIXELS) -> np.ndarray:
    """The picture of a file. Raises PictureError, also where there is no such file."""
    try:
        file = Path(path)
        if file.stat().st_size > MOST_BYTES:
            raise PictureError(f"{path} has more than {MOST_BYTES >> 20} MB")
        data = file.read_bytes()
    except OSError as error:
        raise PictureError(f"{path}: {error}") from None
    return decode_picture(data, name=str(path), most_pixels=most_pixels)


def decode_picture(
    data: bytes, *, name: str = "the picture", most_pixels: int = MOST_PIXELS
) -> np.ndarray:
    """uint8 [height, width, 3], RGB, of a JPEG, PNG, BMP, WebP, GIF, TIFF or AVIF file; of one with
    several pictures the first.

    Raises PictureError for anything else, for more than `most_pixels` pixels, and without OpenCV.
    """
    width, height = size_of(data, name)
    if width * height > most_pixels:
        raise PictureError(
            f"{name} has {width}x{height} pixels, of {most_pixels / 1e6:g} million at most"
        )
    try:
        import cv2
    except ImportError:
        raise PictureError(
            "reading pictures takes OpenCV: pip install 'swarm-mesh[perception]'"
        ) from None
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise PictureError(f"{name} cannot be decoded: {error}") from None
    if pixels is None:
        raise PictureError(f"{name} cannot be decoded: it is damaged or cut short")
    if _is_avif(data):  # OpenCV applies the orientation of all others
        pixels = _turned(pixels, data)
    return np.asarray(pixels, np.uint8)


def size_of(data: bytes, name: str = "the picture") -> tuple[int, int]:
    """Width and height as the header has them. Raises PictureError."""
    size = None
    if data[:2] == b"\xff\xd8":
        size = _jpeg_size(data)
    elif data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        size = _number(data, 16, 4, "big"), _number(data, 20, 4, "big")
    elif data[:2] == b"BM":
        size = _number(data, 18, 4, "little"), abs(_signed(data, 22))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp_size(data)
    elif data[:6] in (b"GIF87a", b"GIF89a"):
        size = _number(data, 6, 2, "little"), _number(data, 8, 2, "little")
    elif data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        size = _tiff_size(data)
    elif _is_avif(data):
        size = _avif_size(data)
    else:
        raise PictureError(f"{name} is no {FORMS} file")
    if size is None or not size[0] or not size[1]:
        raise PictureError(f"{name} has no size in its header: it is damaged or cut short")
    return size


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        elif marker in _JPEG_FRAMES:
            return _number(data, at + 7, 2, "big"), _number(data, at + 5, 2, "big")
        else:
            at += 2 + max(2, _number(data, at + 2, 2, "big"))
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """https://developers.google.com/speed/webp/docs/riff_container"""
    kind = data[12:16]
    if kind == b"VP8X":
        return _number(data, 24, 3, "little") + 1, _number(data, 27, 3, "little") + 1
    if kind == b"VP8L":
        bits = _number(data, 21, 4, "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    return None


def _tiff_size(data: bytes) -> tuple[int, int] | None:
    """TIFF 6.0, section 2, and BigTIFF, whose numbers are longer: of the first directory."""
    order = "little" if data[:1] == b"I" else "big"
    is_big = 43 in data[2:4]
    at = _number(data, 8 if is_big else 4, 8 if is_big else 4, order)
    count = _number(data, at, 8 if is_big else 2, order)
    at += 8 if is_big else 2
    found = {}
    for entry in range(min(count, 4096)):
        begin = at + entry * (20 if is_big else 12)
        tag, kind = _number(data, begin, 2, order), _number(data, begin + 2, 2, order)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT):
            size = {3: 2, 4: 4, 16: 8}.get(kind, 0)  # SHORT, LONG, LONG8
            found[tag] = _number(data, begin + (12 if is_big else 8), size, order)
    return (found[_TIFF_WIDTH], found[_TIFF_HEIGHT]) if len(found) == 2 else None


def _is_avif(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in _AVIF_BRANDS


def _avif_boxes(data: bytes, kind: bytes, size: int) -> Iterator[bytes]:
    """The contents of the properties of this kind (ISO 23008-12, 6.5), which lie in the box `meta`
    of the file, each of so many bytes."""
    at = 0
    while (length := _number(data, at, 4, "big")) >= 8 and data[at + 4 : at + 8] != b"meta":
        at += length
    meta = data[at : at + length]
    head, at = (size + 8).to_bytes(4, "big") + kind, 0
    while (at := meta.find(head, at)) >= 0:
        at += 8
        yield meta[at : at + size]


def _avif_size(data: bytes) -> tuple[int, int] | None:
    """The largest size that is told: a picture is made of tiles, which tell theirs, too. The tiles
    themselves may be larger; libavif decodes 268 million pixels at most, whatever is told."""
    sizes = [
        (_number(each, 4, 4, "big"), _number(each, 8, 4, "big"))
        for each in _avif_boxes(data, b"ispe", 12)
    ]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def _turned(pixels: np.ndarray, data: bytes) -> np.ndarray:
    """Turned anticlockwise by quarters, then mirrored, as an AVIF file says beside its picture."""
    for angle in list(_avif_boxes(data, b"irot", 1))[:1]:
        pixels = np.rot90(pixels, angle[0] & 3)
    for axis in list(_avif_boxes(data, b"imir", 1))[:1]:
        pixels = pixels[:, ::-1] if axis[0] & 1 else pixels[::-1]
    return np.ascontiguousarray(pixels)


def _number(data: bytes, at: int, size: int, order: str) -> int:
    part = data[at : at + size]
    return int.from_bytes(part, "big" if order == "big" else "little") if len(part) == size else 0


def _signed(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little", signed=True) if len(data) >= at + 4 else 0
