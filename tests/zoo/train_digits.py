"""Trains the demo's two models on scikit-learn's handwritten digits and writes `shards/zoo/data`.

    PYTHONPATH=tests python -m zoo.train_digits  train both, write, evaluate (scikit-learn, onnx)
    PYTHONPATH=tests python -m zoo.train_digits --check  evaluate the shipped files only

Everything is seeded: a machine with an equal version of numpy gives equal bytes. The held-out
images are set aside first and only used to report the accuracy; no setting was chosen by them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shards.zoo
from shards import zoo
from zoo.numpy_network import Adam, Array, Sequential, cross_entropy

DATA = Path(shards.zoo.__file__).parent / "data"
SEED = 7
HELD_OUT_IMAGES = 540
BATCH_SIZE = 64

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def split_digits() -> tuple[Images, Labels, Images, Labels]:
    """Training images UINT8 [1257, 1, 8, 8] in 0..16 and labels, then the 540 held-out ones.

    The split is at random; both parts show the same 13 writers, so accuracy here says nothing
    about a fourteenth.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.data.reshape(-1, 1, 8, 8).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(labels))
    held, train = order[:HELD_OUT_IMAGES], order[HELD_OUT_IMAGES:]
    return images[train], labels[train], images[held], labels[held]


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """Each image [batch, height, width, channels] moved by -1, 0 or 1 pixel along each axis."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, x.shape[1:3], axis=(1, 2))
    rows, columns = rng.integers(0, 3, (2, len(x)))
    return np.moveaxis(windows[np.arange(len(x)), rows, columns], 1, -1)


def train(
    network: Sequential, images: Images, labels: Labels, *, epochs: int, rate: float, augment: float
) -> float:
    """Trains in place, with a cosine from `rate` to 0; returns the last epoch's mean loss.

    `augment` is the share of images that are shifted by up to a pixel.
    """
    rng = np.random.default_rng(SEED)
    x = np.moveaxis(images.astype(np.float32) / 16, 1, -1)
    adam = Adam(network.parameters(), decay=0.01)
    batches = len(labels) // BATCH_SIZE
    loss = 0.0
    for epoch in range(epochs):
        losses = []
        order = rng.permutation(len(labels))
        for index in range(batches):
            chosen = order[index * BATCH_SIZE : (index + 1) * BATCH_SIZE]
            batch = x[chosen]
            moved = rng.random(len(batch)) < augment
            batch[moved] = shifted(batch[moved], rng)
            value, gradient = cross_entropy(network.forward(batch, True), labels[chosen])
            network.backward(gradient)
            progress = (epoch * batches + index) / (epochs * batches)
            adam.step(rate * 0.5 * (1 + math.cos(math.pi * progress)))
            losses.append(value)
        loss = float(np.mean(losses))
    return loss


def write() -> None:
    """Trains both models and writes them and the images to `shards/zoo/data`."""
    from zoo.digits_net import digits_lite_network, digits_network, to_onnx

    images, labels, held_images, held_labels = split_digits()
    recipes: dict[str, tuple[Callable[[int], Sequential], int, float, float]] = {
        "digits": (digits_network, 30, 0.004, 0.5),
        "digits-lite": (digits_lite_network, 60, 0.005, 0.0),
    }
    for name, (network_of, epochs, rate, augment) in recipes.items():
        started = time.perf_counter()
        network = network_of(SEED)
        loss = train(network, images, labels, epochs=epochs, rate=rate, augment=augment)
        (DATA / f"{name}.onnx").write_bytes(to_onnx(network, name))
        print(f"{name}: {epochs} epochs in {time.perf_counter() - started:.1f} s, loss {loss:.4f}")
    write_images("digits-heldout.npz", held_images, held_labels)
    write_images("digits-training.npz", images, labels)


def write_images(name: str, images: Images, labels: Labels) -> None:
    """Writes a file of `shards/zoo/data` with images in 0..16 and their labels."""
    np.savez_compressed(DATA / name, images=images, labels=labels.astype(np.uint8))


def accuracy(model: bytes) -> float:
    """The share of held-out images whose label ONNX Runtime finds, on one CPU thread."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    images, labels = zoo.digits_heldout()
    (logits,) = session.run(["logits"], {"image": images})
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def check() -> None:
    """Prints size and held-out accuracy of the shipped models."""
    count = len(zoo.digits_heldout()[1])
    for name, model in (("digits", zoo.digits_model()), ("digits-lite", zoo.digits_lite_model())):
        print(f"{name}: {len(model)} bytes, accuracy {accuracy(model):.4f} of {count} held out")


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(description="Train or check the demo's digit models.")
    parser.add_argument("--check", action="store_true", help="evaluate the shipped files only")
    if not parser.parse_args().check:
        write()
    check()


if __name__ == "__main__":
    main()
