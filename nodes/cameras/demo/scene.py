"""The camera of `swarm demo --camera`, a process of its own: H.264 over UDP (MPEG-TS).

    python -m nodes.cameras.demo.scene URL FRAMES_PER_SECOND

A card with a digit moves through a drawn room, stands still, and gives way to another card. Where
the card is follows from the frame's number alone: that is the truth that answers are held against.
It prints one line, the moment of frame 0 on `time.monotonic()`, and runs until it is ended.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import cache

import numpy as np

from shards.zoo import digits_heldout

WIDTH, HEIGHT, CELL = 640, 480, 10  # pixels; a digit's pixel is a cell
CARD = 8 * CELL  # pixels of a side
ROOM, PAPER = 0.2, 0.4  # brightness: the room's at the most, the card's paper
TURN = 45  # frames that a card is there; it stands still for two thirds of them
MOVES = TURN // 3
# Held-out images that the digits model reads rightly, with a margin that survives H.264.
CARDS = tuple(range(3, 35))


@dataclass(frozen=True)
class Card:
    """left, top: in pixels. digit: that is written on it."""

    left: int
    top: int
    digit: int

    @property
    def box(self) -> np.ndarray:
        """[4]: left, top, right, bottom as shares of the picture."""
        left, top = self.left / WIDTH, self.top / HEIGHT
        return np.array([left, top, left + CARD / WIDTH, top + CARD / HEIGHT])


def card(number: int) -> Card:
    """The card in this frame."""
    turn, at = divmod(number, TURN)
    random = np.random.default_rng(turn)
    left, top = (int(random.integers(0, most)) for most in (WIDTH - CARD - 90, HEIGHT - CARD))
    return Card(left + 6 * min(at, MOVES), top, int(digits_of()[1][_image_of(turn)]))


def draw(number: int) -> np.ndarray:
    """uint8 [480, 640, 3], RGB."""
    image = _room().copy()
    shown, written = card(number), digits_of()[0][_image_of(number // TURN), 0]
    paper = np.kron(PAPER + (1 - PAPER) * written, np.ones((CELL, CELL)))
    rows, columns = slice(shown.top, shown.top + CARD), slice(shown.left, shown.left + CARD)
    image[rows, columns] = (paper[..., None] * 255).astype(np.uint8)
    return image


@cache
def digits_of() -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 8, 8] and digits [n]."""
    images, labels = digits_heldout()
    return images, labels


def _image_of(turn: int) -> int:
    return CARDS[turn % len(CARDS)]


@cache
def _room() -> np.ndarray:
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH]
    waves = 0.5 + 0.25 * np.sin(across / 47) + 0.25 * np.sin(down / 31 + across / 90)
    room = waves[..., None] * np.array([0.9, 1.0, 0.8]) * ROOM * 235
    return np.asarray(room, np.uint8)


def send(url: str, rate: int) -> None:
    """Until the process ends."""
    import av

    # With the length of each packet the receiver need not wait for the next one.
    options = {"omit_video_pes_length": "0", "flush_packets": "1"}
    with av.open(url, "w", format="mpegts", options=options) as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"tune": "zerolatency", "preset": "ultrafast", "g": str(rate)}
        began = time.monotonic()
        print(began, flush=True)
        number = 0
        while True:
            frame = av.VideoFrame.from_ndarray(draw(number), format="rgb24")
            frame.pts = number
            for packet in stream.encode(frame):
                container.mux(packet)
            # A camera shows what is there now: one that is late leaves frames out.
            number = max(number + 1, int((time.monotonic() - began) * rate))
            time.sleep(max(0.0, began + number / rate - time.monotonic()))


if __name__ == "__main__":
    try:
        send(sys.argv[1], int(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
