"""Pictures from files: read with their orientation, refused before a huge one takes memory."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage import data
from support.oriented import TURNS, drawn, in_corners

from shards.cameras.picture import decode_picture, read_picture, size_of
from shards.errors import PictureError

cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
BEGINS = [b"GIF89a", b"II*\0", b"MM\0+", b"\0\0\0\x10ftypavif\0\0\0\0\0\0\0\x50meta"]
IMAGE = data.astronaut()[:200, :300]
FORMATS = [".jpg", ".png", ".bmp", ".webp", ".gif", ".tif", ".avif"]
ORIENTED = ["jpeg", "png", "webp", "tiff", "avif"]


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
    lossless = suffix in (".png", ".bmp", ".tif")
    allowed = 0 if lossless else 20 if suffix == ".gif" else 6  # GIF has 256 colours
    assert np.abs(made.astype(int) - IMAGE).mean() <= allowed


@pytest.mark.parametrize("quality", [(), (cv2.IMWRITE_WEBP_QUALITY, 101)])
def test_both_kinds_of_webp_tell_their_size(quality: tuple[int, ...]) -> None:
    assert size_of(encoded(".webp", options=quality)) == (300, 200)


def test_the_orientation_of_a_camera_is_applied() -> None:
    turned = decode_picture(with_orientation(encoded(".jpg"), 6))
    assert turned.shape == (300, 200, 3)
    upright = decode_picture(encoded(".jpg"))
    np.testing.assert_array_equal(turned, np.rot90(upright, -1))


@pytest.mark.parametrize("form", ORIENTED)
@pytest.mark.parametrize("turn", TURNS)
def test_every_orientation_of_every_form_is_applied(form: str, turn: str) -> None:
    """Pillow writes it as each form has it: in EXIF, in TIFF's own tag, in boxes of AVIF."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x112] = TURNS[turn].exif
    Image.fromarray(TURNS[turn].store(drawn())).save(file, form, exif=exif)
    assert size_of(file.getvalue()) == TURNS[turn].store(drawn()).shape[1::-1]
    made = decode_picture(file.getvalue())
    assert made.shape == drawn().shape
    assert in_corners(made) == in_corners(drawn())


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", "<>")
def test_a_tiff_tells_its_size_in_either_order_of_bytes(order: str, big: bool) -> None:
    """Width as a short number, height as a long one, as the first picture's directory has them."""
    file = io.BytesIO()
    pages = [Image.new("RGB", (30 + 10 * n, 20)) for n in range(2)]
    # Pillow writes the processor's order; the other one is written here.
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}H", 43 if big else 42)
    wide, high = (256, 3, 1, 30), (257, 4, 1, 20)
    if big:
        data = head + struct.pack(f"{order}HHQQ", 8, 0, 16, 2)
        data += struct.pack(f"{order}HHQHxxxxxx", *wide) + struct.pack(f"{order}HHQLxxxx", *high)
    else:
        data = head + struct.pack(f"{order}LH", 8, 2)
        data += struct.pack(f"{order}HHLHxx", *wide) + struct.pack(f"{order}HHLL", *high)
    assert size_of(data) == (30, 20)
    pages[0].save(file, "tiff", save_all=True, append_images=pages[1:], big_tiff=big)
    assert size_of(file.getvalue()) == (30, 20)


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


@given(st.binary(max_size=80), st.sampled_from([b"\xff\xd8", b"BM", b"RIFF0000WEBP", *BEGINS, b""]))
def test_whatever_bytes_come_a_size_is_told_or_refused(rest: bytes, begin: bytes) -> None:
    try:
        width, height = size_of(begin + rest)
    except PictureError:
        return
    assert width > 0
    assert height > 0


def test_other_files_are_refused_with_the_kinds_that_are_read(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="JPEG, PNG, BMP, WebP, GIF, TIFF or AVIF"):
        decode_picture(b"%PDF-1.7" + b"\0" * 30)
    with pytest.raises(PictureError, match="nowhere"):
        read_picture(tmp_path / "nowhere.png")
