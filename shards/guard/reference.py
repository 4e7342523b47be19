"""What a guard compares with: made from calibration data, an artifact of a model version.

The artifact is one run of numbers, float64, little-endian: of each view its scale, its mean [size]
and its whitening [size, size]. How many there are follows from the views, which stand in the
manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from shards.errors import ArtifactError
from shards.guard.distance import distances
from shards.guard.summary import TensorView

MOST_VIEWS = 16
MOST_TOLD = 1e6  # a score without an end is no JSON


@dataclass(frozen=True, slots=True)
class FittedView:
    """One view of calibration data. scale: the largest usual distance. mean: float64 [size].
    whitening: float64 [size, size]."""

    view: TensorView
    scale: float
    mean: np.ndarray
    whitening: np.ndarray

    def share(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """float64 [rows]: distances in scales."""
        rows = self.view.summary(tensors[self.view.tensor])
        shares: np.ndarray = distances(rows, self.mean, self.whitening) / self.scale
        return shares


@dataclass(frozen=True, slots=True)
class GuardReference:
    """What is usual, in some views."""

    views: Sequence[FittedView]

    def scores(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """float64 [rows]: how many times as far as is usual at most, in the view that says most;
        above 1 is unfamiliar, and `MOST_TOLD` is the most. tensors: what the stage received and
        sends, by name. One that stands for all rows counts for each."""
        with np.errstate(all="ignore"):
            found = [fitted.share(tensors) for fitted in self.views]
        most = max(map(len, found))
        whole = [np.full(most, each.max(initial=0)) for each in found if len(each) != most]
        scores: np.ndarray = np.max([*(x for x in found if len(x) == most), *whole], axis=0)
        return scores.clip(max=MOST_TOLD)

    def to_bytes(self) -> bytes:
        """The artifact."""
        parts = [(np.array([x.scale]), x.mean, x.whitening.reshape(-1)) for x in self.views]
        return np.concatenate([*chain(*parts)]).astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, views: Sequence[TensorView]) -> GuardReference:
        """Raises ArtifactError for what `to_bytes` did not write of these views."""
        if len(data) != bytes_of(views):
            raise ArtifactError(
                f"a guard's file has {len(data)} bytes, of {bytes_of(views)}: make it again with "
                "`swarm model guard`"
            )
        numbers = np.frombuffer(data, "<f8").astype(np.float64)
        fitted = []
        for view in views:
            size = view.size
            scale, mean, whitening = np.split(numbers[: 1 + size + size * size], [1, 1 + size])
            numbers = numbers[1 + size + size * size :]
            if not scale[0] > 0 or not all(np.isfinite(x).all() for x in (scale, mean, whitening)):
                raise ArtifactError("a guard's file holds numbers that no guard has: make it again")
            fitted.append(FittedView(view, float(scale[0]), mean, whitening.reshape(size, size)))
        return cls(tuple(fitted))


def bytes_of(views: Sequence[TensorView]) -> int:
    """Of the artifact."""
    return 8 * sum(1 + view.size + view.size * view.size for view in views)
