"""Videos and pictures that lie otherwise than they are shown, with what people see of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

COLOURS = {"red": (230, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 230), "grey": (90,) * 3}


@dataclass(frozen=True)
class Turn:
    """matrix: of a display matrix, a b c d. exif: the orientation of EXIF. show: from the stored
    picture to what people see. store: the other way."""

    matrix: tuple[int, int, int, int]
    exif: int
    show: Callable[[np.ndarray], np.ndarray]
    store: Callable[[np.ndarray], np.ndarray]


def _turn(matrix: tuple[int, int, int, int], exif: int, quarters: int, mirror: bool) -> Turn:
    """Mirrored, then turned clockwise."""

    def show(image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.rot90(image[:, ::-1] if mirror else image, -quarters))

    def store(image: np.ndarray) -> np.ndarray:
        back = np.rot90(image, quarters)
        return np.ascontiguousarray(back[:, ::-1] if mirror else back)

    return Turn(matrix, exif, show, store)


TURNS = {
    "0": _turn((1, 0, 0, 1), 1, 0, False),
    "90": _turn((0, 1, -1, 0), 6, 1, False),
    "180": _turn((-1, 0, 0, -1), 3, 2, False),
    "270": _turn((0, -1, 1, 0), 8, 3, False),
    "mirrored": _turn((-1, 0, 0, 1), 2, 0, True),
    "mirrored 90": _turn((0, -1, -1, 0), 7, 1, True),
    "mirrored 180": _turn((1, 0, 0, -1), 4, 2, True),
    "mirrored 270": _turn((0, 1, 1, 0), 5, 3, True),
}


def drawn(height: int = 48, width: int = 64) -> np.ndarray:
    """[height, width, 3], uint8: a colour in each quarter."""
    image = np.zeros((height, width, 3), np.uint8)
    image[: height // 2, : width // 2] = COLOURS["red"]
    image[: height // 2, width // 2 :] = COLOURS["green"]
    image[height // 2 :, : width // 2] = COLOURS["blue"]
    image[height // 2 :, width // 2 :] = COLOURS["grey"]
    return image


def in_corners(image: np.ndarray) -> list[str]:
    """The colours at top left, top right, bottom left, bottom right."""
    high, wide = image.shape[0] // 4, image.shape[1] // 4
    places = [(high, wide), (high, 3 * wide), (3 * high, wide), (3 * high, 3 * wide)]
    table = np.array(list(COLOURS.values()))
    names = list(COLOURS)
    return [names[np.abs(table - image[at].astype(int)).sum(1).argmin()] for at in places]


def write_turned(
    path: Path,
    codec: str,
    pictures: Sequence[np.ndarray],
    turn: str = "0",
    aspect: Fraction = Fraction(1),
) -> None:
    """A video whose pictures are stored as they are given."""
    forms = {"mjpeg": "yuvj420p", "png": "rgb24"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = forms.get(codec, "yuv420p")
        stream.codec_context.sample_aspect_ratio = aspect
        a, b, c, d = (each << 16 for each in TURNS[turn].matrix)
        stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for image in pictures:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
