"""A picture that travels: whole, bounded, and without anything beside its pixels."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swarm
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo, Spec, Stage
from swarm.wire.picture import MOST_BYTES, MOST_SCANS, Picture

PIXELS = cv2.GaussianBlur(
    np.random.default_rng(1).integers(0, 256, (30, 44, 3)).astype(np.uint8), (0, 0), 2
)
SECRET = b"GPS 52.5 13.4"


def encoded(kind: str, *options: int) -> bytes:
    done, data = cv2.imencode(kind, PIXELS, list(options))
    assert done
    return data.tobytes()


def decoded(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


FILES = {
    "jpeg": encoded(".jpg"),
    "progressive": encoded(".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "png": encoded(".png"),
}


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_secrets(kind: str, orientation: int, order: str) -> bytes:
    """A file with EXIF of this orientation and byte order, a comment, and a trailer."""
    tiff = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "IH", 8, 2)
    tiff += struct.pack(order + "HHII", 0x010F, 2, 4, 0x41424344)
    tiff += struct.pack(order + "HHIHHI", 0x0112, 3, 1, orientation, 0, 0) + SECRET
    data = FILES[kind]
    if kind == "png":
        return data[:33] + chunk(b"eXIf", tiff) + chunk(b"tEXt", b"a\0" + SECRET) + data[33:]
    exif, comment = b"Exif\0\0" + tiff, b"\xff\xfe" + struct.pack(">H", 2 + len(SECRET)) + SECRET
    head = b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + comment
    return data[:2] + head + data[2:] + SECRET


@pytest.mark.parametrize("kind", FILES)
def test_a_file_without_anything_else_travels_as_it_is(kind: str) -> None:
    picture = swarm.Picture(FILES[kind])
    assert picture.data == FILES[kind]
    assert picture.size == (44, 30)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", FILES)
def test_nothing_leaves_but_pixels_that_are_turned_as_the_file_says(
    kind: str, orientation: int, order: str
) -> None:
    data = with_secrets(kind, orientation, order)
    picture = Picture(data)
    assert SECRET in data
    assert SECRET not in picture.data
    np.testing.assert_array_equal(decoded(picture.data), decoded(data))
    assert Picture(picture.data).data == picture.data


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_anywhere_is_refused(kind: str) -> None:
    data = FILES[kind]
    for length in range(len(data)):
        with pytest.raises(InvalidArgument):
            Picture(data[:length])


@given(data=st.data(), kind=st.sampled_from(sorted(FILES)))
def test_a_file_with_any_bytes_changed_is_a_picture_or_refused(data: Any, kind: str) -> None:
    harmed = bytearray(FILES[kind])
    places = st.integers(0, len(harmed) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=8)):
        harmed[at] = data.draw(st.integers(0, 255))
    try:
        picture = Picture(bytes(harmed))
    except InvalidArgument:
        return
    assert picture.size.width * picture.size.height > 0
    assert Picture(picture.data).data == picture.data


def test_a_small_file_of_a_huge_picture_is_refused_by_its_header() -> None:
    jpeg, png = bytearray(FILES["jpeg"]), FILES["png"]
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    header = struct.pack(">II", 1 << 20, 1 << 20) + png[24:29]
    for bomb in (bytes(jpeg), png[:8] + chunk(b"IHDR", header) + png[33:]):
        with pytest.raises(InvalidArgument, match="million at most"):
            Picture(bomb)
    with pytest.raises(InvalidArgument, match="more than 16 MB"):
        Picture(bytes(MOST_BYTES + 1))


def test_a_jpeg_of_very_many_scans_is_refused_before_any_of_them_is_decoded() -> None:
    data = FILES["jpeg"]
    scan = data[data.index(b"\xff\xda") : -2]
    Picture(data[:-2] + scan * (MOST_SCANS - 1) + data[-2:])
    with pytest.raises(InvalidArgument, match="scans"):
        Picture(data[:-2] + scan * MOST_SCANS + data[-2:])


def test_a_model_takes_a_picture_only_where_it_says_what_becomes_of_it() -> None:
    spec = (Spec("image", "FP32", (1, 3, 30, 44)),)
    plain = ModelInfo("m", "1", spec, spec, (Stage(1, spec, spec, 1.0),))
    declared = replace(plain, task={"preprocess": {"input": "image"}})
    inputs = {"image": Picture(FILES["jpeg"]).tensor}
    assert (plain.picture, declared.picture) == ("", "image")
    declared.check(inputs, pictures=True)
    for model, pictures in ((plain, True), (declared, False)):
        with pytest.raises(InvalidArgument, match="must be FP32"):
            model.check(inputs, pictures=pictures)
