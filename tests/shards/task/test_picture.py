"""Pictures from files: read with their orientation, refused before a huge one takes memory."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import data

from shards.errors import PictureError
from shards.task.picture import decode_picture, read_picture, size_of

cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
IMAGE = data.astronaut()[:200, :300]
FORMATS = [".jpg", ".png", ".bmp", ".webp"]


def encoded(suffix: str, image: np.ndarray = IMAGE, options: tuple[int, ...] = ()) -> bytes:
    done, made = cv2.imencode(suffix, np.ascontiguousarray(image[:, :, ::-1]), list(options))
    assert done
    return bytes(made)


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    tiff = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0) + b"\0" * 4
    exif = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_picture_is_read_with_its_colours_in_order(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    path.write_bytes(encoded(suffix))
    made = read_picture(path)
    assert made.shape == IMAGE.shape
    assert made.dtype == np.uint8
    assert size_of(path.read_bytes()) == (300, 200)
    lossless = suffix in (".png", ".bmp")
    assert np.abs(made.astype(int) - IMAGE).mean() <= (0 if lossless else 6)


@pytest.mark.parametrize("quality", [(), (cv2.IMWRITE_WEBP_QUALITY, 101)])
def test_both_kinds_of_webp_tell_their_size(quality: tuple[int, ...]) -> None:
    assert size_of(encoded(".webp", options=quality)) == (300, 200)


def test_the_orientation_of_a_camera_is_applied() -> None:
    turned = decode_picture(with_orientation(encoded(".jpg"), 6))
    assert turned.shape == (300, 200, 3)
    upright = decode_picture(encoded(".jpg"))
    np.testing.assert_array_equal(turned, np.rot90(upright, -1))


def test_a_small_file_of_a_huge_picture_is_refused_by_its_header_alone() -> None:
    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    bomb += struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(PictureError, match="20000x20000 pixels, of 64 million"):
        decode_picture(bomb)
    with pytest.raises(PictureError, match="300x200"):
        decode_picture(encoded(".jpg"), most_pixels=59_999)
    assert decode_picture(encoded(".jpg"), most_pixels=60_000).shape == IMAGE.shape


@pytest.mark.parametrize("suffix", FORMATS)
def test_torn_pictures_are_refused_or_read_and_nothing_else(suffix: str) -> None:
    whole = encoded(suffix)
    for length in (0, 1, 2, 9, 12, 20, 26, 60, len(whole) // 2):
        try:
            made = decode_picture(whole[:length])
        except PictureError:
            continue
        assert made.shape == IMAGE.shape


@given(st.binary(max_size=80), st.sampled_from([b"\xff\xd8", b"BM", b"RIFF0000WEBP", b""]))
def test_whatever_bytes_come_a_size_is_told_or_refused(rest: bytes, begin: bytes) -> None:
    try:
        width, height = size_of(begin + rest)
    except PictureError:
        return
    assert width > 0
    assert height > 0


def test_other_files_are_refused_with_the_kinds_that_are_read(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="JPEG, PNG, BMP or WebP"):
        decode_picture(b"GIF89a" + b"\0" * 30)
    with pytest.raises(PictureError, match="nowhere"):
        read_picture(tmp_path / "nowhere.png")
