"""An index of vectors: the nearest ones of a question, with their ids and what belongs to them.

It is made of an archive of numpy (.npz): `vectors` [n, d], perhaps `ids` [n], and any other arrays
of n rows, the payload. On the disk it is a folder, and in a version of a composition the same files
with the index's name before theirs. A node maps them into its memory, and reads what it needs.

Up to `EXACT` vectors are all compared. Above, the search is approximate: HNSW (Malkov, Yashunin,
2016), by usearch, which is imported when an index is made or opened. An index that is made of the
same archive by the same release is the same.
"""

from __future__ import annotations

import io
import json
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from shards.compose.errors import CompositionError
from shards.errors import ManifestError
from shards.json_fields import check_token
from shards.specs import DATATYPES, TensorSpec

ABOUT, VECTORS, IDS = "index.json", "vectors.usearch", "ids.npy"
METRICS = ("cos", "l2sq", "ip")
EXACT = 4096  # vectors
MOST_VECTORS, MOST_DIMENSIONS, MOST_NEAREST = 10_000_000, 1 << 16, 256
AT_ONCE = 16  # questions that are searched while others wait
NOBODY = -1  # the id where nothing is near enough
OWN = ("labels", "distances")


@dataclass(frozen=True, slots=True)
class IndexAbout:
    """metric: cos (1 - cosine), l2sq (squared Euclidean), ip (1 - dot product); less is nearer.
    payload: datatype and shape of one row, by tensor."""

    metric: str
    dimensions: int
    count: int
    payload: Mapping[str, tuple[str, tuple[int, ...]]]

    @classmethod
    def of(cls, raw: object, where: str) -> IndexAbout:
        """Of `to_doc`. Raises CompositionError."""
        try:
            if not isinstance(raw, Mapping):
                raise TypeError
            found = cls(
                raw["metric"],
                raw["dimensions"],
                raw["count"],
                {name: (told[0], tuple(told[1])) for name, told in raw["payload"].items()},
            )
            sizes = ((found.dimensions, MOST_DIMENSIONS), (found.count, MOST_VECTORS))
            if found.metric not in METRICS or not all(
                type(size) is int and 0 < size <= most for size, most in sizes
            ):
                raise ValueError
            for name, (datatype, shape) in found.payload.items():
                TensorSpec.from_dict({"name": name, "datatype": datatype, "shape": list(shape)})
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ManifestError):
            raise CompositionError(where, f"this tells of no index: {raw!r:.200}") from None
        return found

    def to_doc(self) -> dict[str, Any]:
        """For JSON."""
        payload = {name: [kind, list(shape)] for name, (kind, shape) in self.payload.items()}
        told = {"metric": self.metric, "dimensions": self.dimensions, "count": self.count}
        return {**told, "payload": payload}

    def files(self) -> tuple[str, ...]:
        """Of its folder, beside what tells of it."""
        return (VECTORS, IDS, *(f"payload-{name}.npy" for name in sorted(self.payload)))

    def makes(self, k: int) -> tuple[TensorSpec, ...]:
        """What a search gives for rows of vectors; without the axis of k where that is 1."""
        rows = (-1,) if k == 1 else (-1, k)
        return (
            TensorSpec("labels", "INT64", rows),
            TensorSpec("distances", "FP32", rows),
            *(
                TensorSpec(name, datatype, (*rows, *shape))
                for name, (datatype, shape) in sorted(self.payload.items())
            ),
        )


def made_index(archive: Path, metric: str, folder: Path) -> IndexAbout:
    """Make the index of an archive in an empty folder. Raises CompositionError for what is none,
    ModuleNotFoundError without usearch."""
    from usearch.index import Index

    where = archive.name
    if metric not in METRICS:
        raise CompositionError(where, f"the metric is one of {', '.join(METRICS)}")
    try:
        with np.load(archive, allow_pickle=False) as loaded:
            arrays = dict(loaded)
    except (OSError, ValueError, EOFError, TypeError, BadZipFile, zlib.error) as error:
        raise CompositionError(where, f"this is no archive of numpy (.npz): {error}") from None
    vectors = _vectors(where, arrays.pop("vectors", None), metric)
    ids = _ids(where, arrays.pop("ids", np.arange(len(vectors), dtype=np.int64)), len(vectors))
    payload = {}
    for name, array in sorted(arrays.items()):
        payload[name] = _payload(where, name, array, len(vectors))
    index = Index(ndim=vectors.shape[1], metric=metric, dtype="f32")
    index.add(np.arange(len(vectors)), vectors, threads=1)  # by several each time another one
    index.save(str(folder / VECTORS))
    np.save(folder / IDS, ids)
    for name in payload:
        np.save(folder / f"payload-{name}.npy", np.ascontiguousarray(arrays[name]))
    about = IndexAbout(metric, vectors.shape[1], len(vectors), payload)
    (folder / ABOUT).write_text(json.dumps(about.to_doc(), indent=1), encoding="utf-8")
    return about


def _vectors(where: str, array: np.ndarray | None, metric: str) -> np.ndarray:
    if array is None or array.ndim != 2 or array.dtype.kind != "f":
        told = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise CompositionError(where, f"`vectors` are floats [n, d], not {told}")
    count, dimensions = array.shape
    if not 0 < count <= MOST_VECTORS or not 0 < dimensions <= MOST_DIMENSIONS:
        text = f"1 to {MOST_VECTORS} vectors of 1 to {MOST_DIMENSIONS} numbers"
        raise CompositionError(where, f"{text}, not {count} of {dimensions}")
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(array, np.float32)
    wrong = ~_is_vector(vectors, metric)
    if wrong.any():
        what = "not finite as FP32" + (", or zero, which has no direction" * (metric == "cos"))
        raise CompositionError(where, f"vector {int(wrong.argmax())} is {what}")
    return vectors


def _is_vector(vectors: np.ndarray, metric: str) -> np.ndarray:
    """For each row whether it can be compared."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.square(vectors).sum(axis=1)
    finite: np.ndarray = np.isfinite(length)
    return finite & (length > 0) if metric == "cos" else finite


def _ids(where: str, array: np.ndarray, count: int) -> np.ndarray:
    if array.shape != (count,) or array.dtype.kind not in "iu":
        told = f"{array.dtype}{list(array.shape)}"
        raise CompositionError(where, f"`ids` are {count} whole numbers, not {told}")
    if array.size and (array.max() > np.iinfo(np.int64).max or array.min() < 0):
        raise CompositionError(where, "`ids` are from 0 on, and fit INT64")
    ids = array.astype(np.int64)
    known, counts = np.unique(ids, return_counts=True)
    if len(known) < count:
        raise CompositionError(where, f"id {int(known[counts.argmax()])} stands there twice")
    return ids


def _payload(where: str, name: str, array: np.ndarray, count: int) -> tuple[str, tuple[int, ...]]:
    try:
        check_token("tensor", name)
    except ManifestError as error:
        raise CompositionError(where, str(error)) from None
    if name in OWN:
        raise CompositionError(where, f"{name!r} is what a search makes itself")
    datatype = DATATYPES.get(array.dtype)
    if datatype is None or not array.ndim or len(array) != count or 0 in array.shape:
        text = f"{name!r} has a row for each of {count} vectors, of numbers"
        raise CompositionError(where, f"{text}, not {array.dtype}{list(array.shape)}")
    return datatype, array.shape[1:]


def read_about(folder: Path, where: str) -> IndexAbout:
    """What a folder's index is. Raises CompositionError."""
    try:
        raw = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        text = f"{folder} is no index: `swarm compose index ARCHIVE.npz -o {folder}` makes one"
        raise CompositionError(where, text) from None
    return IndexAbout.of(raw, where)


class NearestIndex:
    """An index that is searched. Safe for several threads."""

    def __init__(self, about: IndexAbout, fetch: Callable[[str], bytes | Path], name: str) -> None:
        """fetch(file): of its folder; a path is mapped into memory, bytes are held. Raises
        CompositionError for files that are none of this index, ModuleNotFoundError without
        usearch."""
        from usearch.index import Index

        self.about = about
        self._lock = threading.Lock()
        try:
            file = fetch(VECTORS)
            self._index: Any = (
                Index.restore(str(file), view=True)
                if isinstance(file, Path)
                else Index.restore(bytes(file))
            )
            self._ids = _array(fetch(IDS))
            self._payload = {
                tensor: _array(fetch(f"payload-{tensor}.npy")) for tensor in sorted(about.payload)
            }
        except (OSError, ValueError, RuntimeError, EOFError) as error:
            raise CompositionError(name, f"this is no index: {error}") from None
        found = self._index  # None where usearch finds nothing in it
        told = found and (
            found.ndim,
            len(found),
            str(getattr(found.metric_kind, "name", "")).lower(),
        )
        shapes = {"": ("INT64", (about.count,))} | {
            name: (kind, (about.count, *shape)) for name, (kind, shape) in about.payload.items()
        }
        arrays = {"": self._ids, **self._payload}
        if told != (about.dimensions, about.count, about.metric) or shapes != {
            name: (DATATYPES.get(array.dtype), array.shape) for name, array in arrays.items()
        }:
            raise CompositionError(name, f"its files are not as it says: {about.to_doc()}")

    def search(
        self, vectors: np.ndarray, k: int, most_distance: float | None
    ) -> dict[str, np.ndarray]:
        """vectors: FP32 [n, d]. The k nearest of each, nearest first, as `IndexAbout.makes` says:
        where there is none within `most_distance`, and for a vector that cannot be compared, the
        label is -1, the distance infinite, and the payload 0."""
        count = len(vectors)
        rows, distances = np.zeros((count, k), np.int64), np.full((count, k), np.inf, np.float32)
        able = np.flatnonzero(_is_vector(vectors, self.about.metric))
        for begin in range(0, len(able), AT_ONCE):
            some = able[begin : begin + AT_ONCE]
            rows[some], distances[some] = self._nearest(vectors[some], k)
        near = np.isfinite(distances)
        if most_distance is not None:
            near &= distances <= most_distance
        made = {
            "labels": np.where(near, self._ids[rows], NOBODY),
            "distances": np.where(near, distances, np.float32(np.inf)),
        }
        for name, array in self._payload.items():
            wide = near.reshape(*near.shape, *[1] * (array.ndim - 1))
            made[name] = np.where(wide, array[rows], np.zeros((), array.dtype))
        return {name: array[:, 0] for name, array in made.items()} if k == 1 else made

    def _nearest(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and distances [n, k]."""
        exact = self.about.count <= EXACT
        with self._lock:  # its searches share memory
            found = self._index.search(vectors, k, exact=exact, threads=1)
            # Of one vector the library answers without that axis, and with what it has found.
            each = found.counts if len(vectors) > 1 else np.array([len(found)])
            if not exact and (each < k).any():
                found = self._index.search(vectors, k, exact=True, threads=1)
        return found.keys.astype(np.int64), found.distances


def _array(file: bytes | Path) -> np.ndarray:
    if isinstance(file, Path):
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        return array
    held: np.ndarray = np.load(io.BytesIO(file), allow_pickle=False)
    return held
