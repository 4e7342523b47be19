"""Cameras of a Raspberry Pi by picamera2, where the system has it: it comes by apt, not by pip.

The sensor stamps the beginning of a frame, on the clock of `time.monotonic()`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from nodes.cameras.sources.feed import CameraLost, TakenPicture

SIZE = (1280, 720)


class PicameraFeed:
    """A `CameraFeed` of `picamera2` or `picamera2://NUMBER`. Raises `CameraLost`."""

    ends = polls = False

    def __init__(self, where: str) -> None:
        from picamera2 import Picamera2

        number = where.partition("://")[2] or "0"
        try:
            self._camera: Any = Picamera2(int(number))
            # picamera2 calls the order of bytes of RGB "BGR888". Without a queue, a frame is one
            # that began after it was asked for.
            main = {"size": SIZE, "format": "BGR888"}
            self._camera.configure(self._camera.create_video_configuration(main, queue=False))
            self._camera.start()
        except (RuntimeError, IndexError, ValueError) as error:
            raise CameraLost(f"{where}: {error}") from None

    def read(self) -> TakenPicture | None:
        try:
            request = self._camera.capture_request()
            try:
                stamp = request.get_metadata().get("SensorTimestamp")
                image: np.ndarray = request.make_array("main")
            finally:
                request.release()
        except RuntimeError as error:
            raise CameraLost(f"the camera stopped: {error}") from None
        captured = stamp / 1e9 if stamp else time.monotonic()
        return TakenPicture(lambda: image, captured)

    def close(self) -> None:
        self._camera.stop()
        self._camera.close()
