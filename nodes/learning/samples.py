"""The labelled samples of a learner, as features: a bounded store that nothing leaves.

A share of the samples is held out: no training step sees them, and accuracy is measured on them.
On which side a sample lies follows from its bytes, so the same sample taught twice cannot be
trained on and held out. Where a side is full, a new sample takes the place of the oldest one of
the class that has most: a class that is seen seldom is not forgotten for one that is seen often.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from nodes.learning.options import LearnOptions
from swarm.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class AddedSamples:
    """Samples of one call, by side."""

    trained_on: int
    held_out: int


class SampleWindow:
    """width: features of a sample. classes: labels are 0 … classes - 1. capacity: samples that
    are kept. held_out: the share, 0 < share < 1, that is never trained on."""

    def __init__(
        self,
        width: int,
        classes: int,
        capacity: int = LearnOptions.capacity,
        held_out: float = LearnOptions.held_out,
    ) -> None:
        if not 0 < held_out < 1:
            raise InvalidArgument(f"a held-out share of {held_out}: it is between 0 and 1")
        self.width = width
        self.classes = classes
        self._share = held_out
        held = max(1, round(capacity * held_out))
        self._training = _Side(max(1, capacity - held), width)
        self._held = _Side(held, width)

    def check_labels(self, labels: NDArray[np.int64], rows: int) -> None:
        """Raises `InvalidArgument` for labels [n] that cannot be taught with `rows` inputs: of
        another number, out of range, or all of one class where no other class was taught."""
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise InvalidArgument(
                f"labels are one list of whole numbers, not {labels.dtype} {list(labels.shape)}"
            )
        if len(labels) != rows or not rows:
            raise InvalidArgument(f"{len(labels)} labels for {rows} inputs: one each is needed")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.classes:
            wrong = low if low < 0 else high
            raise InvalidArgument(
                f"label {wrong} is out of range: this model has the classes 0 to {self.classes - 1}"
            )
        if low == high and not set(self.seen()) - {low}:
            raise InvalidArgument(
                f"all labels are class {low}, and no other class was taught here yet: "
                "teach two classes at least in the first call"
            )

    def add(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> AddedSamples:
        """Keep samples: features FP32 [n, width], labels [n]. All of them or, with
        `InvalidArgument`, none."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise InvalidArgument(
                f"features of shape {list(features.shape)}: [any, {self.width}] is expected"
            )
        if not np.isfinite(features).all():
            raise InvalidArgument("the inputs give features that are not finite")
        self.check_labels(labels, len(features))
        held = np.array([_fraction(row) < self._share for row in features])
        self._held.add(features[held], labels[held])
        self._training.add(features[~held], labels[~held])
        return AddedSamples(int((~held).sum()), int(held.sum()))

    def seen(self) -> list[int]:
        """The classes that have a sample, sorted."""
        return sorted({*self._training.labels.tolist(), *self._held.labels.tolist()})

    @property
    def training(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Features [n, width] and labels [n] to train on; views."""
        return self._training.features, self._training.labels

    @property
    def held_out(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Features [n, width] and labels [n] that are never trained on; views."""
        return self._held.features, self._held.labels


class _Side:
    def __init__(self, capacity: int, width: int) -> None:
        self._features = np.empty((capacity, width), np.float32)
        self._labels = np.empty(capacity, np.int64)
        self._ages = np.empty(capacity, np.int64)
        self._count = 0
        self._added = 0

    @property
    def features(self) -> NDArray[np.float32]:
        return self._features[: self._count]

    @property
    def labels(self) -> NDArray[np.int64]:
        return self._labels[: self._count]

    def add(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        for row, label in zip(features, labels, strict=True):
            at = self._place()
            self._features[at], self._labels[at], self._ages[at] = row, label, self._added
            self._added += 1

    def _place(self) -> int:
        if self._count < len(self._labels):
            self._count += 1
            return self._count - 1
        most = int(np.bincount(self.labels).argmax())
        candidates = np.flatnonzero(self.labels == most)
        return int(candidates[self._ages[candidates].argmin()])


def _fraction(row: NDArray[np.float32]) -> float:
    """A point in [0, 1) that belongs to a sample's bytes."""
    return int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), "big") / 2.0**64
