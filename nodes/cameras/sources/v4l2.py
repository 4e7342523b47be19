"""Cameras of Linux by linuxpy. The kernel stamps each buffer when the frame began, on the clock of
`time.monotonic()` (V4L2_BUF_FLAG_TIMESTAMP_MONOTONIC).

Size and rate are the device's own: `v4l2-ctl -v width=1280,height=720,pixelformat=MJPG` sets them.
"""

from __future__ import annotations

import time

import cv2
import numpy as np
from linuxpy.video.device import Device, Frame, PixelFormat, VideoCapture

from nodes.cameras.sources.feed import BadPicture, CameraLost, TakenPicture, check_size
from nodes.cameras.sources.pictures import pixels_of_jpeg

READ_WITHIN = 3.0  # seconds
BUFFERS = 2  # of the driver: with more, a slow reader gets older frames
# From the driver's layout: the shape of its rows, and how OpenCV calls the conversion.
_PLAIN = {
    "YUYV": ((1, 2), cv2.COLOR_YUV2RGB_YUYV),
    "UYVY": ((1, 2), cv2.COLOR_YUV2RGB_UYVY),
    "NV12": ((1.5, 1), cv2.COLOR_YUV2RGB_NV12),
    "YUV420": ((1.5, 1), cv2.COLOR_YUV2RGB_I420),
    "GREY": ((1, 1), cv2.COLOR_GRAY2RGB),
    "BGR24": ((1, 3), cv2.COLOR_BGR2RGB),
}


class V4l2Feed:
    """A `CameraFeed` of a device as /dev/video0, by its path or v4l2://PATH. Raises
    `CameraLost`."""

    ends = polls = False

    def __init__(self, where: str) -> None:
        path = where.removeprefix("v4l2://")
        try:
            self._device = Device(path)
            self._device.open()
        except (OSError, ValueError) as error:
            raise CameraLost(f"{path}: {error}") from None
        try:
            self._capture = VideoCapture(self._device, size=BUFFERS)
            self._capture.open()
        except (OSError, ValueError) as error:
            self._device.close()
            raise CameraLost(f"{path}: {error}") from None

    def read(self) -> TakenPicture | None:
        try:
            frame = self._capture.buffer.frame_reader.read(READ_WITHIN)
        except OSError as error:
            raise CameraLost(f"the device stopped: {error.strerror}") from None
        if frame is None:
            raise CameraLost(f"no frame for {READ_WITHIN} s")
        check_size(frame.width, frame.height)
        now = time.monotonic()
        stamped = float(frame.timestamp)
        # A driver without the monotonic clock stamps with another one, or not at all.
        return TakenPicture(lambda: pixels(frame), stamped if now - 10.0 < stamped <= now else now)

    def close(self) -> None:
        self._capture.close()
        self._device.close()


def pixels(frame: Frame) -> np.ndarray:
    """[height, width, 3], uint8, RGB. Raises `BadPicture`."""
    form = PixelFormat(frame.pixel_format).name
    if form in ("MJPEG", "JPEG"):
        return pixels_of_jpeg(frame.data)
    height, width = frame.height, frame.width
    if form == "RGB24":
        return np.frombuffer(frame.data, np.uint8)[: height * width * 3].reshape(height, width, 3)
    if form not in _PLAIN:
        known = ", ".join(["MJPEG", "RGB24", *_PLAIN])
        raise BadPicture(f"pixel format {form}: {known} are read; set one by v4l2-ctl")
    (rows, depth), conversion = _PLAIN[form]
    shape = (int(height * rows), width, depth)
    size = shape[0] * shape[1] * shape[2]
    if len(frame.data) < size:
        raise BadPicture(f"a frame of {len(frame.data)} bytes, not {size}")
    return cv2.cvtColor(np.frombuffer(frame.data, np.uint8)[:size].reshape(shape), conversion)
