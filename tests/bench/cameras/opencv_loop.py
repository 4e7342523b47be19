"""The floor of `swarm bench cameras`: OpenCV reads, UltraFace finds, in one loop of one process.

A line of JSON for each frame: its moment on `time.monotonic()`, its number since the start, and the
boxes in pixels.
"""

from __future__ import annotations

import os
import time

import cv2

from bench.cameras.faces import face_detector, in_pixels
from bench.helpers import arguments, tell


def main(url: str, ultraface: str, tuned: bool) -> None:
    """tuned: with the options of `nodes.cameras.sources.streams`."""
    if tuned:
        os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "fflags;nobuffer+noparse+nofillin"
    detector = face_detector(file=ultraface)
    # One decoding thread: each one more would hold a frame back.
    options = [cv2.CAP_PROP_N_THREADS, 1]
    tell("up")
    camera = cv2.VideoCapture(url, cv2.CAP_FFMPEG, options)
    number = 0
    while True:
        is_there, image = camera.read()
        if not is_there:
            return
        boxes = in_pixels(detector.find(cv2.cvtColor(image, cv2.COLOR_BGR2RGB)), image)
        tell({"now": time.monotonic(), "number": number, "boxes": boxes.tolist()})
        number += 1


if __name__ == "__main__":
    main(*arguments())
