"""The decoder of pictures."""

from __future__ import annotations

import math
from contextlib import ExitStack
from importlib.util import find_spec

import numpy as np

from bench.hostile.target import Case, Target
from shards.cameras.picture import decode_picture
from swarm.errors import SwarmError
from swarm.wire.picture import MOST_PIXELS, Picture


def _open_picture(stack: ExitStack) -> Case:
    import cv2

    image = np.add.outer(np.arange(40), np.arange(56)).astype(np.uint8)[..., None].repeat(3, 2)
    progressive = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]
    files = [cv2.imencode(kind, image)[1].tobytes() for kind in (".jpg", ".png")]
    files.append(cv2.imencode(".jpg", image, progressive)[1].tobytes())
    files.append(files[0][:2] + b"\xff\xe1\0\x0eExif\0\0II*\0\x08\0\0\0" + files[0][2:])

    def decode(data: bytes) -> None:
        """As a node does."""
        decode_picture(Picture(data).data, most_pixels=MOST_PIXELS)

    def declared(data: bytes) -> int:
        try:
            return len(data) + 3 * math.prod(Picture(data).size)
        except SwarmError:
            return len(data)

    return Case(tuple(files), decode, declared=declared)


TARGETS = () if find_spec("cv2") is None else (Target("pictures", "bytes", _open_picture, 0.2),)
