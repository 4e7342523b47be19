"""A picture as a file's bytes, JPEG or PNG, in place of the tensor that a model takes for it.

On the wire it is a tensor like any other: datatype UINT8, shape [bytes], under the name of the
model's picture input. Whoever runs the first layers decodes it, and prepares it as the model's
manifest says. Pure: a file's structure is read here, and no pixel.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swarm.errors import InvalidArgument

PICTURES = "pictures"
"""Among the codecs that a node tells: it decodes pictures."""
MOST_BYTES = 16 << 20
MOST_PIXELS = 1 << 24
"""Of a picture that comes by the mesh: 48 MB decoded."""
MOST_SCANS = 64
"""Of a JPEG: each passes over all pixels. Progressive files have ten or so."""

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_EXIF, _COMMENT = 0xE1, 0xFE
# JFIF and Adobe say how colours are stored; all other segments of applications say other things.
_KEPT_APPS = {0xE0, 0xEE}
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"}
_ORIENTATION = 0x0112  # EXIF's tag


class PictureSize(NamedTuple):
    """Pixels, as the file has them: before it is turned as its orientation says."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, init=False)
class Picture:
    """A JPEG or PNG file that is whole, without anything beside its pixels and their orientation:
    EXIF, comments, profiles, thumbnails and whatever stands behind its end are taken out, and no
    pixel is touched. data: the bytes that travel."""

    data: bytes
    size: PictureSize

    def __init__(self, data: bytes | memoryview) -> None:
        """Raises `InvalidArgument` for another kind of file, one that is damaged or cut short, and
        one that is too large to be decoded by the mesh (16 MB, 16.7 million pixels)."""
        data = bytes(data)
        if len(data) > MOST_BYTES:
            raise InvalidArgument(f"the picture has more than {MOST_BYTES >> 20} MB")
        try:
            if data[:2] == b"\xff\xd8":
                kept, size = _jpeg(data)
            elif data[:8] == _PNG:
                kept, size = _png(data)
            else:
                raise InvalidArgument("the picture is no JPEG or PNG file")
        except (struct.error, IndexError):
            raise InvalidArgument("the picture is damaged or cut short") from None
        if not size.width or not size.height:
            raise InvalidArgument("the picture has no size in its header: it is damaged")
        if size.width * size.height > MOST_PIXELS:
            raise InvalidArgument(
                f"the picture has {size.width}x{size.height} pixels, of "
                f"{MOST_PIXELS / 1e6:.1f} million at most"
            )
        object.__setattr__(self, "data", kept)
        object.__setattr__(self, "size", size)

    @property
    def tensor(self) -> np.ndarray:
        """UINT8 [bytes], as it travels."""
        return np.frombuffer(self.data, np.uint8)


Inputs = Mapping[str, "np.ndarray | Picture"]


def tensors_of(inputs: Inputs) -> dict[str, np.ndarray]:
    """Inputs as they travel."""
    return {
        name: value.tensor if isinstance(value, Picture) else value
        for name, value in inputs.items()
    }


def is_encoded(array: np.ndarray) -> bool:
    """Whether a tensor of a picture input has the form of a file's bytes. A tensor of pixels has
    a rank of 3 or 4."""
    return array.ndim == 1 and array.dtype == np.uint8


# --- JPEG (ITU T.81, annex B) ----------------------------------------------------------------


def _jpeg(data: bytes) -> tuple[bytes, PictureSize]:
    """The file up to its end, without what is no picture. Raises `InvalidArgument`."""
    kept, turned, size, scans = [data[:2]], 0, None, 0
    for marker, start, end in _segments(data):
        body = data[start + 4 : end]
        if marker in _FRAMES and size is None:
            height, width = struct.unpack_from(">HH", body, 1)
            size = PictureSize(width, height)
        if marker == _SOS:
            scans += 1
            if scans > MOST_SCANS:
                raise InvalidArgument(f"the picture has more than {MOST_SCANS} scans")
        if marker == _EXIF and body[:6] == b"Exif\0\0" and not turned:
            turned = _orientation(body[6:])
        if not (0xE0 <= marker <= 0xEF or marker == _COMMENT) or marker in _KEPT_APPS:
            kept.append(data[start:end])
    if size is None or not scans:
        raise InvalidArgument("the picture is damaged or cut short")
    if turned > 1:
        exif = b"Exif\0\0" + _turned(turned)
        kept.insert(1, b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif)
    return b"".join(kept), size


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of each segment up to the file's end, a scan with its data. Raises
    `InvalidArgument` where the file ends before."""
    at = 2
    while at + 2 <= len(data):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if marker == _EOI:
            yield marker, at, at + 2
            return
        if marker == 0 or marker == _SOI:
            break
        end = at + 2
        if marker not in _ALONE:
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            end += length
            if length < 2 or end > len(data):
                break
        if marker == _SOS:
            found = _AFTER_SCAN.search(data, end)
            if found is None:
                break
            end = found.start()
        yield marker, at, end
        at = end
    raise InvalidArgument("the picture is damaged or cut short")


def _orientation(tiff: bytes) -> int:
    """1 to 8, of the first directory of EXIF (TIFF 6.0, section 2); 1 where it says none."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, at)
    for number in range(min(entries, (len(tiff) - at - 2) // 12)):
        tag, _kind, _count, value = struct.unpack_from(order + "HHIH", tiff, at + 2 + 12 * number)
        if tag == _ORIENTATION:
            return value if 1 <= value <= 8 else 1
    return 1


def _turned(orientation: int) -> bytes:
    """EXIF that says an orientation, and nothing else."""
    entry = struct.pack(">HHIHHI", _ORIENTATION, 3, 1, orientation, 0, 0)
    return b"MM\0*\0\0\0\x08\0\x01" + entry


# --- PNG (ISO/IEC 15948) ---------------------------------------------------------------------


def _png(data: bytes) -> tuple[bytes, PictureSize]:
    """The file's chunks of pixels, and its orientation. Raises `InvalidArgument`."""
    kept, at, size, turned = [_PNG], len(_PNG), None, 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if end > len(data):
            break
        if struct.unpack_from(">I", data, end - 4)[0] != zlib.crc32(data[at + 4 : end - 4]):
            break
        if (size is None) != (kind == b"IHDR"):
            break
        if size is None:
            size = PictureSize(*struct.unpack_from(">II", data, at + 8))
        if kind in _PNG_KEPT:
            kept.append(data[at:end])
        if kind == b"eXIf" and not turned:
            turned = _orientation(data[at + 8 : end - 4])
            if turned > 1:
                kept.append(_chunk(b"eXIf", _turned(turned)))
        if kind == b"IEND":
            return b"".join(kept), size
        at = end
    raise InvalidArgument("the picture is damaged or cut short")


def _chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)
