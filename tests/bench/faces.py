"""Scenes with known faces: scikit-image's pictures, with faces pasted onto them.

The faces are of its astronaut (public domain, NASA) and of its 100 faces of "Labeled Faces in the
Wild", 25 pixels small. All video here is synthetic.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import cv2
import numpy as np

WIDTH, HEIGHT = 640, 480
BACKGROUNDS = ("coffee", "chelsea", "rocket", "brick", "grass", "gravel", "coins", "moon", "clock")
_ASTRONAUT = (slice(30, 190), slice(165, 285))  # the astronaut's face, chin to hair
_FACE_IN_LFW = 100  # the first hundred of its pictures are faces, the others are not
Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""


@cache
def background(name: str) -> np.ndarray:
    """uint8 [720, 960, 3], RGB: larger than a frame, so that a camera can move over it."""
    from skimage import data

    picture: Any = getattr(data, name)()
    if picture.ndim == 2:
        picture = cv2.cvtColor(picture, cv2.COLOR_GRAY2RGB)
    wide: np.ndarray = cv2.resize(picture[..., :3], (960, 720), interpolation=cv2.INTER_AREA)
    return wide


@cache
def astronaut() -> np.ndarray:
    """uint8 [160, 120, 3], RGB."""
    from skimage import data

    return np.ascontiguousarray(data.astronaut()[_ASTRONAUT])  # type: ignore[no-untyped-call]


@cache
def people() -> np.ndarray:
    """uint8 [100, 25, 25, 3]: gray faces."""
    from skimage import data

    faces = data.lfw_subset()[:_FACE_IN_LFW]  # type: ignore[no-untyped-call]
    return np.repeat((faces * 255).astype(np.uint8)[..., None], 3, axis=-1)


def paste(image: np.ndarray, face: np.ndarray, center: tuple[float, float], height: float) -> Box:
    """Draw a face into a picture, in place, with soft edges. Returns the box of what was drawn,
    inside the picture."""
    high = max(8, round(height))
    wide = max(8, round(height * face.shape[1] / face.shape[0]))
    way = cv2.INTER_AREA if high < face.shape[0] else cv2.INTER_CUBIC
    drawn = cv2.resize(face, (wide, high), interpolation=way).astype(np.float32)
    y, x = np.mgrid[-1 : 1 : high * 1j, -1 : 1 : wide * 1j]
    alpha = np.clip((1.0 - np.hypot(x, y)) * 6, 0, 1)[..., None].astype(np.float32)
    left, top = round(center[0] - wide / 2), round(center[1] - high / 2)
    x0, y0 = max(0, left), max(0, top)
    x1, y1 = min(image.shape[1], left + wide), min(image.shape[0], top + high)
    if x0 >= x1 or y0 >= y1:
        return (0.0, 0.0, 0.0, 0.0)
    part = slice(y0 - top, y1 - top), slice(x0 - left, x1 - left)
    under = image[y0:y1, x0:x1].astype(np.float32)
    mixed = drawn[part] * alpha[part] + under * (1 - alpha[part])
    image[y0:y1, x0:x1] = np.clip(mixed, 0, 255).astype(np.uint8)
    return (float(x0), float(y0), float(x1), float(y1))


def through_h264(frames: Iterable[np.ndarray], rate: int = 30) -> Iterator[np.ndarray]:
    """Frames as a camera's encoder and a decoder leave them: H.264, zero latency."""
    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "veryfast", "tune": "zerolatency", "crf": "23"}
        stream.codec_context.thread_count = 1
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    sink.seek(0)
    with av.open(sink, "r") as given:
        for decoded in given.decode(video=0):
            yield decoded.to_ndarray(format="rgb24")


def overlap(one: Sequence[float], two: Sequence[float]) -> float:
    """The common area of two boxes over the area that they cover."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    both = max(0.0, width) * max(0.0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return both / (sum(areas) - both) if sum(areas) > both else 0.0
