"""A tensor of any shape as a few numbers a row, at a bounded cost: pure, numpy alone.

Two ways to look at it. *Levels*: the mean and the standard deviation of each channel, over all its
places. *Cells*: the means of the pieces of a coarse grid, so that it matters where something is.
Many channels are averaged in neighbourhoods, and of many places some are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shards.errors import ManifestError
from shards.specs import TensorSpec

MOST_GROUPS = 64  # of channels, or cells of a grid
MOST_PLACES = 1 << 16  # of a row that levels are taken of
PLACES_A_CELL = 8  # along each axis of a cell
LEVELS, CELLS = "levels", "cells"


@dataclass(frozen=True, slots=True)
class TensorView:
    """One way to look at one tensor.

    tensor: its name. way: `levels` or `cells`. rows: axis 0 of the tensor is that of the rows, or
    of size 1; else all of it is one row. channels: the axis of a row that has channels, -1 for
    none. size: numbers that a row becomes.
    """

    tensor: str
    way: str
    rows: bool
    channels: int
    size: int

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: object) -> TensorView:
        """Raises ManifestError for what `to_dict` did not write."""
        kinds = {"tensor": str, "way": str, "rows": bool, "channels": int, "size": int}
        if not isinstance(raw, Mapping) or any(
            type(raw.get(name)) is not kind for name, kind in kinds.items()
        ):
            raise ManifestError(f"a guard's view is malformed: {raw!r:.80}")
        view = cls(**{name: raw[name] for name in kinds})
        if view.way not in (LEVELS, CELLS) or not 0 < view.size <= 2 * MOST_GROUPS:
            raise ManifestError(f"a guard's view is unknown: {raw!r:.80}")
        return view

    def summary(self, array: np.ndarray) -> np.ndarray:
        """float64 [rows, size]. A row has NaN or infinity somewhere where the tensor has, or where
        it has fewer places than it is looked at."""
        arranged = array if self.rows else array[np.newaxis]
        if self.channels < 0 or arranged.ndim < 2 + self.channels:
            arranged = arranged[:, np.newaxis]
        elif self.channels > 0:
            arranged = np.moveaxis(arranged, 1 + self.channels, 1)
        made = _levels(arranged) if self.way == LEVELS else _cells(arranged)
        if made.shape[1] == self.size or not self.size:
            return made
        return np.full((len(made), self.size), np.nan)


def view_of(spec: TensorSpec, way: str, batchable: bool, sample: np.ndarray) -> TensorView:
    """How a tensor of this specification is looked at. sample: one of it, at batch 1."""
    rows = (batchable and spec.batch) or (not spec.any_rank and spec.shape[:1] == (1,))
    sizes = spec.shape[1:] if rows else spec.shape
    channels = next((axis for axis, size in enumerate(sizes) if size > 0), -1)
    view = TensorView(spec.name, way, rows, channels, 0)
    return replace(view, size=view.summary(sample).shape[1])


def _levels(rows: np.ndarray) -> np.ndarray:
    """[n, channels, …] as [n, 2 * groups]."""
    count, channels = rows.shape[:2]
    flat = rows.reshape(count, channels, math.prod(rows.shape[2:]))
    every = -(-channels * flat.shape[2] // MOST_PLACES)
    if every > 1:
        flat = flat[:, :, :: every | 1]  # an odd step meets all columns of a picture of even width
    flat = flat.astype(np.float32)
    if not flat.size:
        return np.full((count, 2 * min(channels, MOST_GROUPS)), np.nan)
    means = np.add.reduce(flat, axis=2) / np.float32(flat.shape[2])
    flat = flat - means[:, :, np.newaxis]
    spread = np.sqrt(np.einsum("ncp,ncp->nc", flat, flat) / flat.shape[2])
    return np.concatenate([_pieces(each, MOST_GROUPS, 1) for each in (means, spread)], axis=1)


def _cells(rows: np.ndarray) -> np.ndarray:
    """[n, channels, …] as [n, cells]."""
    sizes = rows.shape[2:]
    groups = max(1, min(rows.shape[1], MOST_GROUPS))
    along = int((MOST_GROUPS / groups) ** (1 / len(sizes)) + 1e-9) if sizes else 1
    steps = [slice(None, None, max(1, size // (along * PLACES_A_CELL))) for size in sizes]
    seen = rows[(slice(None), slice(None), *steps)].astype(np.float32)
    for axis in range(2, seen.ndim):
        seen = _pieces(seen, along, axis)
    seen = _pieces(seen, MOST_GROUPS, 1)
    return seen.reshape(len(seen), math.prod(seen.shape[1:]))


def _pieces(array: np.ndarray, most: int, axis: int) -> np.ndarray:
    """float64: the means of at most so many neighbourhoods along an axis."""
    size = array.shape[axis]
    count = min(size, most)
    if count == size:
        return array.astype(np.float64, copy=False)
    ends = np.linspace(0, size, count + 1).astype(int)
    shape = [1] * array.ndim
    shape[axis] = count
    sums = np.add.reduceat(array, ends[:-1], axis=axis, dtype=np.float64)
    means: np.ndarray = sums / np.diff(ends).reshape(shape)
    return means
