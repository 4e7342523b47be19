"""Twelve clips of a camera: what moves in them, from a seed. 640x480, 30 frames a second."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from bench.faces import (
    BACKGROUNDS,
    HEIGHT,
    WIDTH,
    Box,
    astronaut,
    background,
    paste,
    through_h264,
)

FRAMES = 150


class _Room:
    """A background, a face, and a camera's noise, drawn by one seed."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.wide = background(str(random.choice(BACKGROUNDS)))
        self.place = (float(random.uniform(200, 440)), float(random.uniform(180, 300)))
        self.height = float(random.uniform(110, 190))
        self.direction = float(random.choice([-1, 1]))
        self.truth: Box | None = None  # of the frame that was drawn last

    def view(self, x: float = 160, y: float = 120) -> np.ndarray:
        """The frame whose corner is at (x, y) of the background."""
        shift = np.array([[1, 0, -x], [0, 1, -y]], np.float32)
        return moved(self.wide, shift)

    def with_face(
        self, image: np.ndarray, x: float = 0, y: float = 0, scale: float = 1
    ) -> np.ndarray:
        at = (self.place[0] + x, self.place[1] + y)
        box = paste(image, astronaut(), at, self.height * scale)
        self.truth = box if box[2] - box[0] > 8 else None
        return image

    def noisy(self, image: np.ndarray, sigma: float) -> np.ndarray:
        noise = self.random.normal(0, sigma, image.shape).astype(np.float32)
        return np.clip(image + noise, 0, 255).astype(np.uint8)


def moved(image: np.ndarray, by: np.ndarray) -> np.ndarray:
    """A frame of a picture, moved by a matrix [2, 3]."""
    frame: np.ndarray = cv2.warpAffine(image, by, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
    return frame


def _static(room: _Room, at: float, frames: int) -> np.ndarray:
    return room.with_face(room.view())


def _pan(room: _Room, at: float, frames: int) -> np.ndarray:
    """The camera turns: 100 pixels in 5 s."""
    x = 160 + room.direction * 100 * (at / frames - 0.5)
    image = room.view(x)
    return room.with_face(image, 160 - x)


def _fast_pan(room: _Room, at: float, frames: int) -> np.ndarray:
    x = 160 + 140 * math.sin(2 * math.pi * at / 75)
    return room.with_face(room.view(x), (160 - x) * 0.6)


def _enter(room: _Room, at: float, frames: int) -> np.ndarray:
    """A person walks in from the side, and stays."""
    x = room.direction * 500 * max(0.0, 1 - at / (0.6 * frames))
    return room.with_face(room.view(), x)


def _pop_up(room: _Room, at: float, frames: int) -> np.ndarray:
    """A small face is there from one frame to the next, and goes."""
    image = room.view()
    return room.with_face(image, scale=0.5) if frames // 3 <= at < 2 * frames // 3 else image


def _light(room: _Room, at: float, frames: int) -> np.ndarray:
    """The light goes slowly, and comes back."""
    gain = 0.65 + 0.35 * math.cos(2 * math.pi * at / frames)
    image = room.with_face(room.view())
    return (image * gain).astype(np.uint8)


def _flicker(room: _Room, at: float, frames: int) -> np.ndarray:
    image = room.with_face(room.view())
    return np.clip(image * (1 + 0.04 * math.sin(at * 2.1)), 0, 255).astype(np.uint8)


def _zoom(room: _Room, at: float, frames: int) -> np.ndarray:
    factor = 1 + 0.5 * at / frames
    image = room.with_face(room.view())
    turn = cv2.getRotationMatrix2D(room.place, 0, factor)
    if room.truth is not None:
        corners = np.array(room.truth).reshape(2, 2) @ turn[:, :2].T + turn[:, 2]
        left, top, right, bottom = corners.ravel()
        room.truth = (float(left), float(top), float(right), float(bottom))
    return moved(image, turn)


def _drift(room: _Room, at: float, frames: int) -> np.ndarray:
    """A face moves by half a pixel a frame."""
    return room.with_face(room.view(), room.direction * (0.5 * at - 37))


def _walk(room: _Room, at: float, frames: int) -> np.ndarray:
    """A person walks there and back."""
    x = 150 * math.sin(2 * math.pi * at / 100)
    return room.with_face(room.view(), x, 6 * abs(math.sin(at / 4)))


def _jitter(room: _Room, at: float, frames: int) -> np.ndarray:
    """A camera that shakes by a pixel."""
    x, y = room.random.uniform(-1, 1, 2)
    return room.with_face(room.view(160 + x, 120 + y), -x, -y)


def _dark(room: _Room, at: float, frames: int) -> np.ndarray:
    """Little light, a face that comes in the middle."""
    image = room.view()
    if at >= frames // 2:
        room.with_face(image)
    return (image * 0.25).astype(np.uint8)


CLIPS = {
    "static": (_static, 1.5),
    "pan": (_pan, 1.5),
    "fast pan": (_fast_pan, 1.5),
    "enter": (_enter, 1.5),
    "pop-up": (_pop_up, 1.5),
    "light": (_light, 1.5),
    "flicker": (_flicker, 1.5),
    "zoom": (_zoom, 1.5),
    "drift": (_drift, 1.5),
    "walk": (_walk, 1.5),
    "jitter": (_jitter, 1.5),
    "dark": (_dark, 3.0),
}
"""By name: what one frame shows, and the standard deviation of the camera's noise."""


@dataclass(frozen=True)
class Clip:
    """images: uint8 [480, 640, 3], RGB, after H.264. faces: where the face is in each, in pixels;
    None where there is none."""

    images: list[np.ndarray]
    faces: list[Box | None]


def clip(name: str, seed: int, frames: int = FRAMES) -> Clip:
    """One clip of `CLIPS`; the same for the same seed."""
    draw, sigma = CLIPS[name]
    room = _Room(np.random.default_rng([seed, sorted(CLIPS).index(name)]))
    faces: list[Box | None] = []

    def raw() -> Iterator[np.ndarray]:
        for at in range(frames):
            room.truth = None
            image = room.noisy(draw(room, at, frames), sigma)
            faces.append(room.truth)
            yield image

    images = list(through_h264(raw()))
    return Clip(images, faces)
