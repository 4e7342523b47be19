"""A camera process with a known face: H.264, sent by UDP (MPEG-TS) or RTSP at its own pace.

It tells the moment of frame 0 on `time.monotonic()`; frame n is due n / rate later.
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

import av
import numpy as np

from bench.faces import (
    BACKGROUNDS,
    HEIGHT,
    WIDTH,
    Box,
    astronaut,
    background,
    paste,
)
from bench.helpers import arguments, tell

LISTENS_WITHIN = 20.0  # seconds
LOOP = 135  # frames, after which the pictures come again


@cache
def pictures() -> tuple[list[np.ndarray], list[Box]]:
    """Frames, uint8 [480, 640, 3], RGB, and where the face is in each, in pixels. No two of them
    have it in the same place."""
    images, faces = [], []
    random = np.random.default_rng(7)
    for at in range(LOOP):
        image = background(BACKGROUNDS[at * 3 // LOOP])[
            120 : 120 + HEIGHT, 160 : 160 + WIDTH
        ].copy()
        turn = 2 * math.pi * at / LOOP
        center = (WIDTH / 2 + 170 * math.cos(turn), HEIGHT / 2 + 70 * math.sin(turn))
        faces.append(paste(image, astronaut(), center, 150))
        noise = random.normal(0, 1.5, image.shape)
        images.append(np.clip(image + noise, 0, 255).astype(np.uint8))
    return images, faces


def send(url: str, rate: int, count: int) -> None:
    """Tells the moment of frame 0, and sends."""
    images, _ = pictures()
    is_udp = url.startswith("udp:")
    options = {"omit_video_pes_length": "0", "flush_packets": "1"}
    if not is_udp:
        options = {"rtsp_transport": "tcp"}
    container, stream = _opened(url, "mpegts" if is_udp else "rtsp", options, rate)
    with container:
        began = time.monotonic()
        tell(began)
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            frame = av.VideoFrame.from_ndarray(images[number % LOOP], format="rgb24")
            frame.pts = number
            for packet in stream.encode(frame):
                container.mux(packet)


def _opened(url: str, form: str, options: dict[str, str], rate: int) -> tuple[Any, Any]:
    """For RTSP the receiver listens, and may come later."""
    until = time.monotonic() + LISTENS_WITHIN
    while True:
        container: Any = av.open(url, "w", format=form, options=options)
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "veryfast", "tune": "zerolatency", "g": str(rate)}
        stream.codec_context.thread_count = 1
        try:
            container.start_encoding()
            return container, stream
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    send(*arguments())
