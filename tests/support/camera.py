"""A camera for tests: a process that encodes moving pictures and sends them. Each frame carries the
moment of its making in its first rows, so that the receiver knows its true age.

    python tests/support/camera.py URL --format mpegts --rate 30 --count 90
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np

STAMP_BITS, CELL = 32, 16  # of 0.1 ms; pixels
SIZE = (640, 480)


def stamped(image: np.ndarray, now: float) -> np.ndarray:
    """The image with a moment of `time.monotonic()` painted into its first rows."""
    stamp = int(now * 1e4) & 0xFFFFFFFF
    for bit in range(STAMP_BITS):
        image[:CELL, bit * CELL : (bit + 1) * CELL] = 255 if stamp >> bit & 1 else 0
    return image


def true_age(image: np.ndarray, now: float) -> float:
    """Milliseconds since the image was painted."""
    cells = image[4:12, : STAMP_BITS * CELL].reshape(8, STAMP_BITS, CELL, 3).mean((0, 2, 3)) > 128
    stamp = sum(1 << bit for bit in np.flatnonzero(cells).tolist())
    return ((int(now * 1e4) - stamp) & 0xFFFFFFFF) / 10


def scene(number: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """[height, width, 3], uint8: a square that moves over a slope."""
    width, height = size
    row = np.linspace(40, 160, width, dtype=np.uint8)
    image = np.repeat(np.repeat(row[None, :, None], height, 0), 3, 2)
    left = number * 5 % max(1, width - 80)
    image[height // 2 - 20 : height // 2 + 20, left : left + 60] = (230, 120, 20)
    return image


def encoder(container: Any, codec: str, rate: float, size: tuple[int, int]) -> Any:
    """A stream that holds no frame back."""
    stream = container.add_stream(codec, rate=round(rate))
    stream.width, stream.height = size
    stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    if codec == "libx264":
        stream.options = {"tune": "zerolatency", "preset": "ultrafast", "g": str(round(rate))}
    return stream


def send(url: str, form: str, rate: float, count: int, codec: str, size: tuple[int, int]) -> None:
    # The length of each packet is written, so that the receiver need not wait for the next one.
    options = {"omit_video_pes_length": "0", "flush_packets": "1"} if form == "mpegts" else {}
    with av.open(url, "w", format=form, options=options) as container:
        stream = encoder(container, codec, rate, size)
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            image = stamped(scene(number, size), time.monotonic())
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = number
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def write_video(
    path: Path,
    count: int,
    rate: float = 30.0,
    size: tuple[int, int] = SIZE,
    faststart: bool = False,
) -> None:
    """A file of so many frames. faststart: with its index first, as files for the web have it."""
    options = {"movflags": "faststart"} if faststart else {}
    with av.open(str(path), "w", options=options) as container:
        stream = encoder(container, "libx264", rate, size)
        for number in range(count):
            for packet in stream.encode(av.VideoFrame.from_ndarray(scene(number, size))):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


@contextmanager
def sending(url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A camera in a process of its own."""
    command = [sys.executable, str(Path(__file__)), url, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--format", default="mpegts")
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--codec", default="libx264")
    parser.add_argument("--size", default="640x480")
    given = parser.parse_args()
    width, height = map(int, given.size.split("x"))
    send(given.url, given.format, given.rate, given.count, given.codec, (width, height))


if __name__ == "__main__":
    main()
