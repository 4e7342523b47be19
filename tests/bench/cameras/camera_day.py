"""A camera's day: one room, people who come and go, light that changes; and what spoils a picture.

One frame a second is drawn. Light follows a day that lasts `LIGHT_PERIOD`, with clouds before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import cv2
import numpy as np

from bench.faces import BACKGROUNDS, HEIGHT, WIDTH, astronaut, background, paste, people

LIGHT_PERIOD = 7200.0  # seconds
Spoil = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def day(seed: int, seconds: int, begins: int = 0) -> Iterator[np.ndarray]:
    """uint8 [480, 640, 3], RGB; a frame a second. The room is the seed's; begins: of the day."""
    random = np.random.default_rng([seed, begins])
    rooms = np.random.default_rng(seed)
    wide = background(str(rooms.choice(BACKGROUNDS)))
    faces = [astronaut(), *people()[rooms.choice(100, 12, replace=False)]]
    cloud, here = 0.0, False
    x, y, face, size = 0.0, 0.0, faces[0], 100.0
    for at in range(begins, begins + seconds):
        left, top = 160 + int(random.integers(-1, 2)), 120 + int(random.integers(-1, 2))
        image = wide[top : top + HEIGHT, left : left + WIDTH].copy()
        if random.random() < 0.1:
            here = not here
            face = faces[int(random.integers(len(faces)))]
            x, y = float(random.uniform(80, 560)), float(random.uniform(150, 330))
            size = float(random.uniform(70, 190))
        if here:
            x = float(np.clip(x + random.normal(0, 25), 40, 600))
            paste(image, face, (x, y), size)
        cloud = 0.98 * cloud + float(random.normal(0, 0.02))
        light = 0.75 + 0.25 * math.sin(2 * math.pi * at / LIGHT_PERIOD) + 0.5 * cloud
        noise = random.normal(0, 2.0, (HEIGHT, WIDTH, 1)).astype(np.float32)
        yield np.clip(image * max(0.35, light) + noise, 0, 255).astype(np.uint8)


def _occluded(share: float) -> Spoil:
    def spoil(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        copy = image.copy()
        wide = round(WIDTH * math.sqrt(share))
        high = round(HEIGHT * math.sqrt(share))
        left, top = (
            int(random.integers(0, WIDTH - wide + 1)),
            int(random.integers(0, HEIGHT - high + 1)),
        )
        copy[top : top + high, left : left + wide] = 20
        return copy

    return spoil


def _noisy(sigma: float) -> Spoil:
    def spoil(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        noise = random.normal(0, sigma, image.shape)
        return np.clip(image + noise, 0, 255).astype(np.uint8)

    return spoil


def _jpeg(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 4])
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert decoded is not None
    return decoded


def _pixelated(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    small = cv2.resize(image, (40, 30), interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)


def _torn(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Rows of a broken cable: each group is shifted."""
    rows = [np.roll(part, int(random.integers(-200, 200)), axis=1) for part in np.split(image, 24)]
    return np.concatenate(rows)


def _scaled(gain: float, offset: float = 0.0) -> Spoil:
    return lambda image, random: np.clip(image * gain + offset, 0, 255).astype(np.uint8)


def _random(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.integers(0, 256, image.shape, dtype=np.uint8)


def _elsewhere(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The camera was turned to another room."""
    others = [background(name) for name in BACKGROUNDS]
    return others[int(random.integers(len(others)))][120:600, 160:800]


CORRUPTIONS: dict[str, Spoil] = {
    "noise 25": _noisy(25),
    "noise 60": _noisy(60),
    "blur 3": lambda image, random: cv2.GaussianBlur(image, (0, 0), 3),
    "blur 8": lambda image, random: cv2.GaussianBlur(image, (0, 0), 8),
    "motion blur 25": lambda image, random: cv2.blur(image, (25, 1)),
    "dark .2": _scaled(0.2),
    "dark .05": _scaled(0.05),
    "bright 2.5": _scaled(2.5),
    "contrast .2": _scaled(0.2, 90),
    "inverted": lambda image, random: 255 - image,
    "occluded 20 %": _occluded(0.2),
    "occluded 60 %": _occluded(0.6),
    "jpeg 4": _jpeg,
    "pixelated": _pixelated,
    "upside down": lambda image, random: np.ascontiguousarray(image[::-1]),
    "colours swapped": lambda image, random: np.ascontiguousarray(image[..., ::-1]),
    "torn rows": _torn,
    "random pixels": _random,
    "another room": _elsewhere,
}
