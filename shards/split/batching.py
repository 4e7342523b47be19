"""Whether requests may share a run: shown by the graph's structure, then confirmed by runs.

Runs alone show nothing: rows that meet only at some scales, or behind a condition, agree in all
runs that happen not to meet it. So a structure that leaves doubt is no batch. Runs can refute it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shards.batch.follow import FollowedTensors
from shards.errors import ModelError
from shards.graph.layer_range import LayerRange
from shards.graph.tensor_types import TensorType
from shards.runtimes.ort import Model
from shards.runtimes.synthetic import deviation, random_feeds
from shards.schema import BATCHING_MODES, Batching
from shards.split.profile import Tensors, run_chain

# Relative deviation of a row. Matrix kernels may round a batch in another way than a row alone.
TOLERANCE = 1e-4
# What the floats of each row are multiplied by: one row has both ends of a picture's scale.
_SCALES: tuple[float | tuple[float, float], ...] = (1.0, 255.0, 1e-3, (1e-3, 255.0), 0.0, -1.0)
# Rows of each batch: of the first, then of the others. A node computes four requests at a time.
_FIRST = ((0, 1, 2, 3),)
_BATCHES = ((1, 0), (2, 4, 1), (5, 3, 4, 2), (0, 0, 5, 4, 3, 2, 1, 1))
# Seconds of the first batch. A slower model is confirmed by it alone.
_SLOW = 1.0

Parts = Sequence[tuple[LayerRange, Model | None]]


def check_mode(asked: str) -> None:
    """Raise ModelError for a word that is not one of the three."""
    if asked not in BATCHING_MODES:
        raise ModelError(f"batch is one of {', '.join(BATCHING_MODES)}, not {asked!r}")


def judge(
    asked: str,
    followed: FollowedTensors | None,
    parts: Parts,
    types: Mapping[str, TensorType],
    feeds: Tensors | None,
    *,
    tolerance: float = TOLERANCE,
) -> Batching:
    """Whether rows of requests may be concatenated, by what, and why not.

    `asked` is "auto", "on" (the owner's word stands for the structure) or "off". `followed` is what
    the structure shows. `feeds` is one input of batch 1. Raises ModelError where "on" is refuted.
    """
    if asked == "off":
        return Batching(asked, "", "the owner switched it off")
    why = "" if asked == "on" else structure(followed, parts)
    why = why or confirm(parts, types, feeds, tolerance=tolerance)
    if asked == "on" and why:
        raise ModelError(f"requests cannot share runs of this model, as batch 'on' says: {why}")
    return Batching(asked, "" if why else "owner" if asked == "on" else "structure", why)


def structure(followed: FollowedTensors | None, parts: Parts) -> str:
    """Why the structure does not show that rows stay apart, "" where it does."""
    if followed is None:
        return "its structure was not followed"
    crossing = dict.fromkeys(name for part, _ in parts for name in part.sends)
    reasons = (followed.crosses(name) for name in crossing)
    return followed.why or next((f"across a cut: {why}" for why in reasons if why), "")


def confirm(
    parts: Parts,
    types: Mapping[str, TensorType],
    feeds: Tensors | None,
    *,
    tolerance: float = TOLERANCE,
) -> str:
    """Why batches of several scales and sizes refute that rows stay apart, "" where none does."""
    for name in dict.fromkeys(name for part, _ in parts for name in (*part.receives, *part.sends)):
        shape = types[name].shape
        if shape and isinstance(shape[0], int):
            return f"axis 0 of {name!r} has the size {shape[0]} in every run"
    if not feeds:
        return "no input was found that the model runs on"
    for name, array in feeds.items():
        if array.ndim == 0 or array.shape[0] != 1:
            return f"input {name!r} has no axis 0 of one row: its shape is {list(array.shape)}"
    rows = list(_rows(types, feeds))
    begin = time.perf_counter()
    why = _refuted(parts, rows, _FIRST, tolerance)
    if why or time.perf_counter() - begin > _SLOW:
        return why
    return _refuted(parts, rows, _BATCHES, tolerance)


def _rows(types: Mapping[str, TensorType], feeds: Tensors) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of one row each, the given one first, then synthetic ones of each scale."""
    yield dict(feeds)
    specs = [types[name].spec() for name in feeds]
    shapes = {name: array.shape for name, array in feeds.items()}
    for seed, scale in enumerate(_SCALES[1:], start=1):
        made = random_feeds(specs, shapes, seed=seed)
        yield {name: _scaled(array, scale) for name, array in made.items()}


def _scaled(array: np.ndarray, scale: float | tuple[float, float]) -> np.ndarray:
    """The array at another scale. Integers are indices, and only become 0 where all is 0."""
    if array.dtype.kind != "f":
        return array * array.dtype.type(0) if scale == 0.0 else array
    if isinstance(scale, float):
        return (array * scale).astype(array.dtype)
    small, large = scale
    factors = np.where(np.arange(array.size) % 2, large, small).reshape(array.shape)
    return (array * factors).astype(array.dtype)


def _refuted(
    parts: Parts,
    rows: Sequence[Tensors],
    batches: Sequence[Sequence[int]],
    tolerance: float,
) -> str:
    """Why the rows of batches are not those of the rows alone, at any cut; "" where they are."""
    used = sorted({number for batch in batches for number in batch})
    together = [
        {name: np.concatenate([rows[number][name] for number in batch]) for name in rows[0]}
        for batch in batches
    ]
    try:
        sent = run_chain(parts, [*(rows[n] for n in used), *together], level="basic").sent
    except ModelError as error:
        return f"it does not run on each of the tried inputs and batches: {error}"
    for left in sent:
        ones, runs = left[: len(used)], left[len(used) :]
        by_row = dict(zip(used, ones, strict=True))
        for batch, run in zip(batches, runs, strict=True):
            for name, array in run.items():
                apart = _apart([by_row[number][name] for number in batch], array)
                if apart > tolerance:
                    return (
                        f"in a batch of {len(batch)} the rows of {name!r} are off by {apart:.3g} "
                        "from the rows alone"
                    )
    return ""


def _apart(ones: Sequence[np.ndarray], together: np.ndarray) -> float:
    """How far the rows of a batch are from the rows alone, at worst: each by its own size."""
    if any(one.ndim == 0 or one.shape[0] != 1 for one in ones) or together.shape[0] != len(ones):
        return float("inf")
    return max(deviation(one, together[at : at + 1]) for at, one in enumerate(ones))
