"""Where drawn frames go: a page, a file, a window. Drawing never delays a result."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np

from nodes.cameras.board import Board
from nodes.cameras.drawing import caption_of, drawn
from nodes.cameras.eye import Eye, SeenFrame
from nodes.cameras.film import Film, path_of
from nodes.cameras.mask.door import image_of
from swarm.errors import InvalidArgument

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
