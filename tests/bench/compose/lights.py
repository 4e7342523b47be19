"""A small classifier that is trained here: from which side a face is lit. And pictures to ask with.

The faces that it learns from are scikit-image's hundred of "Labeled Faces in the Wild"; pictures
show its astronaut, whom the classifier has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from zoo.graph_writer import GraphWriter
from zoo.numpy_layers import Dense, Flatten, Relu
from zoo.numpy_network import Adam, Sequential, cross_entropy

from bench.faces import BACKGROUNDS, astronaut, background, paste, people

SIDE = 16  # pixels of a crop
LIGHTS = ("from the left", "from the right")
LEAST, MOST = 0.5, 0.9  # of the light on the dark side
HEIGHT, WIDTH = 240, 320  # UltraFace's
EPOCHS, BATCH, HIDDEN, RATE = 60, 50, 24, 0.003


@dataclass(frozen=True)
class LitFrames:
    """Two frames of one face, FP32 [1, 3, 240, 320] as UltraFace takes them, and its light."""

    one: np.ndarray
    other: np.ndarray
    light: int


def lit(face: np.ndarray, light: int, random: np.random.Generator) -> np.ndarray:
    """face: uint8 [height, width, 3]."""
    dark = random.uniform(LEAST, MOST)
    ramp = np.linspace(1.0, dark, face.shape[1])
    made: np.ndarray = (face * (ramp, ramp[::-1])[light][None, :, None]).astype(np.uint8)
    return made


def normal(picture: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] as FP32 [3, height, width], as UltraFace takes it."""
    found: np.ndarray = (picture.transpose(2, 0, 1).astype(np.float32) - 127) / 128
    return found


def frames(count: int, seed: int = 5, noise: float = 12.0) -> list[LitFrames]:
    """Pairs of frames: the face moves between them. noise: of a pixel, of 255."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        light = number % len(LIGHTS)
        face = lit(astronaut(), light, random)
        room = background(BACKGROUNDS[number % len(BACKGROUNDS)])
        at = random.uniform((110, 95), (210, 145))
        high = random.uniform(70, 110)
        pair = []
        for _ in range(2):
            image = cv2.resize(room, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
            x, y = at + random.normal(0, 6, 2)
            paste(image, face, (float(x), float(y)), high)
            noisy = image + random.normal(0, noise, image.shape)
            pair.append(normal(np.clip(noisy, 0, 255).astype(np.uint8))[None])
        found.append(LitFrames(pair[0], pair[1], light))
    return found


@cache
def light_model() -> bytes:
    """Input `x` FP32 [batch, 3, 16, 16], a crop of UltraFace's input; output `logits` FP32
    [batch, 2]."""
    random = np.random.default_rng(3)
    network = Sequential(
        Flatten(),
        Dense(random, 3 * SIDE * SIDE, HIDDEN),
        Relu(),
        Dense(random, HIDDEN, len(LIGHTS)),
    )
    adam = Adam(network.parameters(), decay=0.01)
    for _ in range(EPOCHS):
        for start in range(0, len(people()), BATCH):
            labels = random.integers(0, len(LIGHTS), BATCH)
            faces = people()[start : start + BATCH]
            crops = [_crop(f, int(light), random) for f, light in zip(faces, labels, strict=True)]
            _, gradient = cross_entropy(network.forward(np.stack(crops), True), labels)
            network.backward(gradient)
            adam.step(RATE)
    return _to_onnx(network)


def _crop(face: np.ndarray, light: int, random: np.random.Generator) -> np.ndarray:
    """As a detector cuts it: a part of the face, with a camera's noise."""
    whole = lit(face[:, :: random.choice((-1, 1))], light, random)
    top, left = random.integers(0, 4, 2)
    part = whole[top : top + 22, left : left + 22]
    small = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return normal(np.clip(small + random.normal(0, 15, small.shape), 0, 255).astype(np.uint8))


def _to_onnx(network: Sequential) -> bytes:
    writer = GraphWriter("light")
    tensor = writer.add("Flatten", [writer.input("x", [3, SIDE, SIDE])], "flat")
    dense = [layer for layer in network.layers if isinstance(layer, Dense)]
    for number, layer in enumerate(dense):
        weight = writer.constant(f"weight{number}", layer.weight.value)
        bias = writer.constant(f"bias{number}", layer.bias.value)
        name = "logits" if layer is dense[-1] else f"dense{number}"
        tensor = writer.add("Gemm", [tensor, weight, bias], name, transB=1)
        if layer is not dense[-1]:
            tensor = writer.add("Relu", [tensor], f"relu{number}")
    writer.output(tensor, [len(LIGHTS)])
    return writer.to_bytes()
