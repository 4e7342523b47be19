"""A video's pictures are given as people see them: turned, mirrored, with square pixels."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from support.oriented import TURNS, drawn, in_corners, write_turned

from nodes.cameras.sources.address import addresses
from nodes.cameras.sources.feed import BadPicture
from nodes.cameras.sources.opened import open_feed
from nodes.cameras.sources.streams import QUARTERS, turn_of, upright

WAYS = [("clip.mp4", "libx264"), ("clip.mov", "mjpeg"), ("clip.mkv", "libx264")]
ASPECTS = [Fraction(1), Fraction(2), Fraction(1, 2), Fraction(16, 11)]


def pictures_of(path: Path) -> list[np.ndarray]:
    feed = open_feed(addresses(str(path))[0], 0.0, plays=False)
    found = []
    while (taken := feed.read()) is not None:
        found.append(taken.pixels())
    feed.close()
    return found


@pytest.mark.parametrize(("name", "codec"), WAYS)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("aspect", ASPECTS, ids=str)
def test_a_video_is_seen_as_its_display_matrix_and_its_pixel_aspect_say(
    tmp_path: Path, name: str, codec: str, turn: str, aspect: Fraction
) -> None:
    path = tmp_path / name
    write_turned(path, codec, [drawn()] * 3, turn, aspect)
    stored = drawn()
    wide = stored.shape[1] * max(aspect, 1)
    high = stored.shape[0] / min(aspect, 1)
    shown = TURNS[turn].show(stored)
    shape = (wide, high) if shown.shape != stored.shape else (high, wide)
    found = pictures_of(path)
    assert len(found) == 3
    for image in found:
        assert image.shape == (round(shape[0]), round(shape[1]), 3)
        assert in_corners(image) == in_corners(shown)


def test_a_turn_that_changes_in_mid_stream_is_followed(tmp_path: Path) -> None:
    """Cameras that lie on a gimbal write it beside each frame (SEI of H.264)."""
    path = tmp_path / "clip.h264"
    said = ["rotate=90", "rotate=180", "flip=horizontal", "rotate=270", "flip=vertical"]
    shown = ["270", "180", "mirrored", "90", "mirrored 180"]  # SEI counts the other way round
    data = b""
    for words in said:
        with av.open(str(tmp_path / "one.ts"), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.height, stream.width = drawn().shape[:2]
            stream.pix_fmt, stream.options = "yuv420p", {"tune": "zerolatency"}
            (packet,) = stream.encode(av.VideoFrame.from_ndarray(drawn()))
            how = f"h264_metadata=display_orientation=insert:{words}"
            data += b"".join(map(bytes, BitStreamFilterContext(how, stream).filter(packet)))
    path.write_bytes(data)
    found = pictures_of(path)
    expected = [in_corners(TURNS[turn].show(drawn())) for turn in shown]
    assert [in_corners(image) for image in found] == expected


@pytest.mark.parametrize("matrix", [b"", bytes(36), b"\x01" * 7, bytes(40)])
def test_a_matrix_that_says_nothing_turns_nothing(matrix: bytes) -> None:
    assert turn_of(matrix) == QUARTERS


def test_pixels_too_wide_for_memory_are_refused_before_any_is_made() -> None:
    with pytest.raises(BadPicture, match="pixels"):
        upright(np.zeros((1000, 1000, 3), np.uint8), QUARTERS, Fraction(65535))
