"""Late fusion, trained on two halves of scikit-learn's digits: two views of one thing.

    PYTHONPATH=tests python -m zoo.train_halves  train, and tell held-out accuracies (onnx)
    PYTHONPATH=tests python -m zoo.train_halves FOLDER  write left, right and fusion.onnx too

`left` and `right` take one half of an image each, FP32 [batch, 1, 8, 4], and give logits
[batch, 10]; `fusion` takes both views' logits, [batch, 20], zeros for a view that is missing.
Everything is seeded.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shards import zoo
from zoo.graph_writer import GraphWriter
from zoo.numpy_layers import Dense, Flatten, Relu
from zoo.numpy_network import Adam, Array, Sequential, cross_entropy

SEED = 7
CLASSES = 10
EPOCHS = 60
BATCH_SIZE = 64
MISSING = 0.4  # share of training samples that lack one of their views


@dataclass(frozen=True)
class Halves:
    """The trained networks; each gives logits [batch, 10]."""

    left: Sequential
    right: Sequential
    fusion: Sequential

    def views(self, images: Array) -> tuple[Array, Array]:
        """Both views' logits of images [n, 1, 8, 8]."""
        one, other = halves(images)
        return self.left.forward(one, False), self.right.forward(other, False)


def halves(images: Array) -> tuple[Array, Array]:
    """Of images [n, 1, 8, 8]: the left and the right one, each [n, 8, 4, 1]."""
    x = np.moveaxis(images, 1, -1)
    return x[:, :, :4], x[:, :, 4:]


def train() -> Halves:
    """A few seconds on one core. The held-out images are not used."""
    images, labels = zoo.digits_training()
    # A view's logits on what it was trained on are surer than they will be: the fusion learns
    # from images that its views have not seen.
    of_views = np.arange(len(labels)) % 2 == 0
    networks = []
    for number, view in enumerate(halves(images[of_views])):
        rng = np.random.default_rng(SEED + number)
        network = Sequential(Flatten(), Dense(rng, 32, 48), Relu(), Dense(rng, 48, CLASSES))
        _fit(network, view, labels[of_views], 0.0)
        networks.append(network)
    rng = np.random.default_rng(SEED)
    fusion = Sequential(Dense(rng, 2 * CLASSES, 48), Relu(), Dense(rng, 48, CLASSES))
    made = Halves(networks[0], networks[1], fusion)
    both = np.concatenate(made.views(images[~of_views]), axis=1)
    _fit(fusion, both, labels[~of_views], MISSING)
    return made


def _fit(network: Sequential, x: Array, labels: Array, missing: float) -> None:
    rng = np.random.default_rng(SEED)
    adam = Adam(network.parameters(), decay=0.01)
    batches = len(labels) // BATCH_SIZE
    for number in range(EPOCHS * batches):
        chosen = rng.choice(len(labels), BATCH_SIZE, replace=False)
        batch = x[chosen].copy()
        if missing:
            views = batch.reshape(BATCH_SIZE, 2, CLASSES)
            views[rng.random(BATCH_SIZE) < missing / 2, 0] = 0
            views[(rng.random(BATCH_SIZE) < missing / 2) & views[:, 0].any(axis=1), 1] = 0
        _, gradient = cross_entropy(network.forward(batch, True), labels[chosen])
        network.backward(gradient)
        adam.step(0.005 * 0.5 * (1 + math.cos(math.pi * number / (EPOCHS * batches))))


def accuracies(made: Halves) -> dict[str, float]:
    """Of the held-out images: each view alone, the mean of both, fused, fused with one missing."""
    images, labels = zoo.digits_heldout()
    left, right = made.views(images)
    none = np.zeros_like(left)

    def fused(one: Array, other: Array) -> Array:
        return made.fusion.forward(np.concatenate([one, other], axis=1), False)

    answers = {
        "left": left,
        "right": right,
        "mean of both": left + right,
        "fused": fused(left, right),
        "fused, left alone": fused(left, none),
        "fused, right alone": fused(none, right),
    }
    return {name: float((each.argmax(axis=1) == labels).mean()) for name, each in answers.items()}


def to_onnx(network: Sequential, name: str) -> bytes:
    """The network as a serialized ModelProto: `image` or `views` to `logits`."""
    writer = GraphWriter(name)
    tensor = ""
    for index, layer in enumerate(network.layers):
        output = "logits" if index == len(network.layers) - 1 else f"{index}"
        match layer:
            case Flatten():
                tensor = writer.add("Flatten", [writer.input("image", [1, 8, 4])], output)
            case Dense():
                tensor = tensor or writer.input("views", [2 * CLASSES])
                weight = writer.constant(f"{output}.weight", layer.weight.value)
                bias = writer.constant(f"{output}.bias", layer.bias.value)
                tensor = writer.add("Gemm", [tensor, weight, bias], output, transB=1)
            case Relu():
                tensor = writer.add("Relu", [tensor], output)
            case _:
                raise TypeError(f"no ONNX operator for {type(layer).__name__}")
    writer.output(tensor, [CLASSES])
    return writer.to_bytes()


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(description="Train late fusion of two halves of digits.")
    parser.add_argument("folder", nargs="?", help="write the three models there")
    folder = parser.parse_args().folder
    made = train()
    for name, share in accuracies(made).items():
        print(f"{name}: {share:.4f}")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in ("left", "right", "fusion"):
            model = to_onnx(getattr(made, name), name)
            (Path(folder) / f"{name}.onnx").write_bytes(model)


if __name__ == "__main__":
    main()
