"""Where drawn frames go: a page, a file, a window. Drawing never delays a result."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import cv2
import numpy as np

from nodes.cameras.board import Board
from nodes.cameras.drawing import caption_of, drawn
from nodes.cameras.eye import Eye, SeenFrame
from nodes.cameras.mask.door import image_of
from swarm.errors import InvalidArgument

# Drawn frames as a video file: `--save out.mp4`.


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


log = logging.getLogger("swarm.camera")

MOST_WAITING = 32  # drawings that a file may lag behind by; 2 s of frames
JPEG = (cv2.IMWRITE_JPEG_QUALITY, 80)


class Shows:
    """`offer` a frame with its answer. One thread draws, in order.

    board: the page's, None without one. save: a file, "" without one. window: whether one is
    opened. Raises `InvalidArgument` where a window or the file cannot be had.
    """

    def __init__(self, board: Board | None, save: str, window: bool, cameras: list[str]) -> None:
        self._board = board
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drawing")
        self._waiting = 0
        self.dropped = 0
        self._films: dict[str, Film] = {}
        self._window = window
        try:
            if window:
                self._thread.submit(_open_window).result()
            if save:
                is_only = len(cameras) == 1
                self._films = {name: Film(path_of(save, name, is_only)) for name in cameras}
        except BaseException:
            self._thread.shutdown()
            raise

    def wants(self, camera: str) -> bool:
        """Whether anybody looks at this camera now."""
        is_watched = self._board is not None and self._board.is_watched(camera)
        return bool(self._films) or self._window or is_watched

    def offer(self, eye: Eye, seen: SeenFrame, done: Callable[[], None]) -> None:
        """Draw a frame, if anybody looks; `done` is called in the loop when it is drawn, or when
        nobody does. A page and a window skip frames that come too fast; a file has room for some.
        """
        name = eye.source.name
        most = MOST_WAITING if self._films else 1
        if seen.cleared is None or not self.wants(name):
            done()
            return
        if self._waiting > most:
            self.dropped += 1
            done()
            return
        self._waiting += 1
        loop, image = asyncio.get_running_loop(), image_of(seen.cleared)
        drawing = loop.run_in_executor(self._thread, self._draw, name, seen, image)

        def ended(drawing: asyncio.Future[bytes]) -> None:
            self._waiting -= 1
            if not drawing.cancelled() and (error := drawing.exception()) is not None:
                log.warning("a frame of %s is not drawn: %s", name, error)
            elif not drawing.cancelled() and self._board is not None:
                self._board.put(name, drawing.result())
            done()

        drawing.add_done_callback(ended)

    def _draw(self, name: str, seen: SeenFrame, image: np.ndarray) -> bytes:
        """In the thread. The picture as a JPEG, where a page wants one."""
        age = (seen.anatomy.read - seen.anatomy.captured) * 1e3
        picture = drawn(image, seen.found, caption_of(name, age, seen.anatomy.parts()))
        seen.anatomy.drawn = time.monotonic()
        if name in self._films:
            self._films[name].add(picture, seen.moment)
        if self._window:
            cv2.imshow(name, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
            cv2.waitKey(1)
        if self._board is None or not self._board.is_watched(name):
            return b""
        return jpeg(picture)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._thread.shutdown(wait=True)
        for film in self._films.values():
            film.close()


def jpeg(picture: np.ndarray) -> bytes:
    """Pixels alone: no EXIF, no comment, no thumbnail."""
    good, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), JPEG)
    return data.tobytes() if good else b""


def _open_window() -> None:
    how = "use --view 127.0.0.1:8090 for a page, or --save out.mp4 for a file"
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise InvalidArgument(f"--show: there is no display: {how}")
    try:
        cv2.namedWindow("swarm")
        cv2.destroyWindow("swarm")
    except cv2.error:
        text = "--show: this OpenCV has no windows: pip install opencv-python in its place, or "
        raise InvalidArgument(text + how) from None
