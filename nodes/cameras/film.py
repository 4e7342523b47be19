"""Drawn frames as a video file: `--save out.mp4`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import cv2
import numpy as np

from swarm.errors import InvalidArgument

CLOCK = 90_000  # ticks a second
CODECS = ("libx264", "mpeg4")  # the first that this build of FFmpeg has


class Film:
    """One camera's file. Everything is called by one thread. Raises `InvalidArgument` where the
    file cannot be written."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise InvalidArgument(f"--save {path}: there is no folder {path.parent}")
        try:
            self._container: Any = av.open(str(path), "w")
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise InvalidArgument(f"--save {path}: {error}") from None
        self._stream: Any = None
        self._began = 0.0
        self._last = -1

    def add(self, picture: np.ndarray, moment: float) -> None:
        """The next picture, [height, width, 3], uint8, RGB. Its size is that of the first one.
        moment: of its frame, in seconds."""
        if self._stream is None:
            self._begin(picture, moment)
        size = (self._stream.width, self._stream.height)
        if picture.shape[1::-1] != size:
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        tick = max(self._last + 1, round((moment - self._began) * CLOCK))
        frame.pts, frame.time_base, self._last = tick, Fraction(1, CLOCK), tick
        self._container.mux(self._stream.encode(frame))

    def _begin(self, picture: np.ndarray, moment: float) -> None:
        known = av.codecs_available
        codec = next(name for name in CODECS if name in known)
        self._stream = self._container.add_stream(codec, rate=30)
        self._stream.codec_context.time_base = Fraction(1, CLOCK)
        # Both are even, as the codec's colours need.
        self._stream.height, self._stream.width = (side // 2 * 2 for side in picture.shape[:2])
        self._stream.pix_fmt = "yuv420p"
        self._began = moment

    def close(self) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def path_of(save: str, camera: str, is_only: bool) -> Path:
    """Where a camera's file is: with its name where there are several."""
    path = Path(save)
    return path if is_only else path.with_name(f"{path.stem}-{camera}{path.suffix}")
