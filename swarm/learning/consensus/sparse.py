"""The largest entries of a vector: what a node sends of a change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swarm.learning.consensus.layout import Vector


@dataclass(frozen=True, slots=True)
class Sparse:
    """Some entries of a vector of `size`: indices uint32, ascending and unique; values float32."""

    indices: np.ndarray
    values: np.ndarray
    size: int

    def norm(self) -> float:
        """Euclidean length."""
        return float(np.linalg.norm(self.values.astype(np.float64)))


def top_k(vector: Vector, k: int, *, half: bool = False) -> Sparse:
    """The `k` entries of largest magnitude (all that are not zero, where these are fewer).

    half: values are rounded to what float16 can hold, as they travel; what does not fit is cut to
    the largest float16.
    """
    k = min(k, vector.size)
    if k < vector.size:
        chosen = np.argpartition(np.abs(vector), vector.size - k)[vector.size - k :]
        chosen = np.sort(chosen[vector[chosen] != 0])
    else:
        chosen = np.flatnonzero(vector)
    values = vector[chosen]
    if half:
        most = float(np.finfo(np.float16).max)
        values = np.clip(values, -most, most).astype(np.float16).astype(np.float32)
    return Sparse(chosen.astype(np.uint32), values, vector.size)


def add_to(vector: Vector, change: Sparse) -> None:
    """Add the entries in place. The same entries added in the same order give the same bits at
    every node."""
    vector[change.indices] += change.values
