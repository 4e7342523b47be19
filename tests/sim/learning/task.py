"""What the simulated fleet learns: the digits, by softmax regression on their pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shards.zoo import digits_heldout, digits_training

PIXELS, CLASSES = 64, 10
SIZE = PIXELS * CLASSES + CLASSES  # parameters
DECAY = 1e-4  # L2 regularisation of the weights
MOMENTUM = 0.9
BATCH = 32
SHARDS = 2  # runs of label-sorted samples that one node has: two or three classes


@dataclass(frozen=True, slots=True)
class Samples:
    """pixels: float32 [n, 64] in 0..1; labels: int64 [n]."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: np.ndarray) -> Samples:
        return Samples(self.pixels[chosen], self.labels[chosen])


def training_samples() -> Samples:
    """All 1257 training images."""
    images, labels = digits_training()
    return Samples(images.reshape(len(labels), PIXELS), labels)


def held_out_samples() -> Samples:
    """The 540 images that nobody trains on."""
    images, labels = digits_heldout()
    return Samples(images.reshape(len(labels), PIXELS), labels)


def split_by_label(samples: Samples, nodes: int, rng: np.random.Generator) -> list[Samples]:
    """The samples of each node, as unlike the others' as can be: sorted by label, cut into two
    shards a node, and dealt out."""
    order = np.argsort(samples.labels, kind="stable")
    shards = np.array_split(order, SHARDS * nodes)
    dealt = rng.permutation(len(shards)).reshape(nodes, SHARDS)
    return [samples.take(np.concatenate([shards[s] for s in mine])) for mine in dealt]


def gradient(x: np.ndarray, batch: Samples) -> np.ndarray:
    """Gradient of the mean cross-entropy, float32 [650], at the parameters x."""
    weight = x[: PIXELS * CLASSES].reshape(PIXELS, CLASSES)
    logits: np.ndarray = batch.pixels @ weight + x[PIXELS * CLASSES :]
    logits = logits - logits.max(axis=1, keepdims=True)
    exponents: np.ndarray = np.exp(logits)
    chances: np.ndarray = exponents / exponents.sum(axis=1, keepdims=True)
    chances[np.arange(len(batch)), batch.labels] -= 1
    of_weight = batch.pixels.T @ chances / len(batch) + DECAY * weight
    of_bias = chances.sum(axis=0) / len(batch)
    return np.concatenate([of_weight.ravel(), of_bias]).astype(np.float32)


def accuracy(x: np.ndarray, samples: Samples) -> float:
    """Share of the samples whose label has the largest logit."""
    logits = samples.pixels @ x[: PIXELS * CLASSES].reshape(PIXELS, CLASSES)
    return float(((logits + x[PIXELS * CLASSES :]).argmax(axis=1) == samples.labels).mean())


class Trainer:
    """Momentum SGD on one node's samples; the rate falls to a fifth over `rounds`."""

    def __init__(self, samples: Samples, rate: float, rounds: int, seed: int) -> None:
        self._samples = samples
        self._rate = rate
        self._fall = 4.0 / rounds
        self._rng = np.random.default_rng(seed)
        self._velocity: np.ndarray = np.zeros(SIZE, np.float32)
        self._round = 0

    def update(self, x: np.ndarray) -> np.ndarray:
        """What one step adds to the parameters x."""
        batch = self._samples.take(self._rng.integers(0, len(self._samples), BATCH))
        self._velocity = MOMENTUM * self._velocity + (1 - MOMENTUM) * gradient(x, batch)
        rate = self._rate / (1 + self._fall * self._round)
        self._round += 1
        return np.float32(-rate) * self._velocity
