"""Inputs to calibrate and to judge with: read from an .npz file, checked against the model."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shards.errors import InputError, ModelError
from shards.runtimes.synthetic import random_feeds
from shards.specs import DATATYPES, TensorSpec

LABELS = "labels"
_SYNTHETIC = 8  # samples where the caller gives none


@dataclass(frozen=True)
class Samples:
    """`arrays`: each input of the model, axis 0 is the sample. `labels`: the right class of each
    sample, INT64 [count], or None. `synthetic`: the values are random, so that their results say
    how far two models are apart, and nothing about accuracy. `whole`: the inputs without a batch
    axis in front, such as a state [layers, batch, width], or a scalar: the sample's axis is one
    more."""

    arrays: Mapping[str, np.ndarray]
    labels: np.ndarray | None = None
    synthetic: bool = False
    whole: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return min((len(array) for array in self.arrays.values()), default=0)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """One feed of batch 1 after the other."""
        for index in range(len(self)):
            yield {
                name: np.asarray(array[index]) if name in self.whole else array[index : index + 1]
                for name, array in self.arrays.items()
            }

    def first(self, count: int) -> Samples:
        """At most `count` samples from the start."""
        labels = None if self.labels is None else self.labels[:count]
        arrays = {name: array[:count] for name, array in self.arrays.items()}
        return Samples(arrays, labels, self.synthetic, self.whole)


def read_samples(path: str | os.PathLike[str], inputs: Sequence[TensorSpec]) -> Samples:
    """The samples of an .npz file: an array for each input, axis 0 the sample; perhaps `labels`.

    That is the batch axis of the input where its first axis has size 1 or any size. Other inputs,
    such as a state [layers, batch, width], or a scalar, have one axis more in the file.
    Raises ModelError for a file that is not such an archive, InputError for an array that is
    missing, of another shape or datatype, or not finite.
    """
    file = Path(path)
    whole = whole_inputs(inputs)
    how = ", ".join(f"{spec.name}=array" for spec in inputs)
    more = "".join(f"; {s.name!r} is {_wanted(s)}" for s in inputs if s.name in whole)
    remedy = f"write it with numpy.savez({file.name!r}, {how}), axis 0 the samples{more}"
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ModelError(f"{file}: no such file; {remedy}") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ModelError(f"{file} is no .npz file of arrays: {remedy}") from error
    missing = [spec.name for spec in inputs if spec.name not in found]
    if missing:
        has = ", ".join(sorted(found)) or "nothing"
        raise ModelError(f"{file} lacks the input {missing[0]!r} (it has {has}): {remedy}")
    for spec in inputs:
        _check(spec, found[spec.name])
    lengths = {len(found[spec.name]) for spec in inputs}
    if len(lengths) > 1 or 0 in lengths:
        raise ModelError(f"{file}: the inputs have {sorted(lengths)} samples; give equally many")
    return Samples(
        {spec.name: found[spec.name] for spec in inputs},
        _labels(found.get(LABELS), lengths.pop(), str(file)) if LABELS in found else None,
        whole=whole,
    )


def synthetic_samples(inputs: Sequence[TensorSpec]) -> Samples:
    """Seeded samples, like the example of each input at batch 1."""
    feeds = [random_feeds(inputs, seed=seed) for seed in range(_SYNTHETIC)]
    whole = whole_inputs(inputs)
    arrays = {
        spec.name: (np.stack if spec.name in whole else np.concatenate)(
            [feed[spec.name] for feed in feeds]
        )
        for spec in inputs
    }
    return Samples(arrays, synthetic=True, whole=whole)


def whole_inputs(inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """The inputs that no first axis makes samples of: their batch, if any, is another axis."""
    return frozenset(spec.name for spec in inputs if not spec.shape or spec.shape[0] not in (-1, 1))


def _wanted(spec: TensorSpec) -> str:
    """What an array of the file has to be for this input."""
    sizes = spec.shape if spec.name in whole_inputs([spec]) else spec.shape[1:]
    return f"{spec.datatype}[{','.join(['samples', *('?' if d < 0 else str(d) for d in sizes)])}]"


def _check(spec: TensorSpec, array: np.ndarray) -> None:
    """Raise InputError for an array that cannot be fed to this input, one sample at a time."""
    wanted = _wanted(spec)
    got = f"{DATATYPES.get(array.dtype, array.dtype)}{list(array.shape)}"
    sizes = spec.shape if spec.name in whole_inputs([spec]) else spec.shape[1:]
    fits = (
        array.dtype == spec.dtype
        and array.ndim == len(sizes) + 1
        and all(want in (-1, has) for want, has in zip(sizes, array.shape[1:], strict=True))
    )
    if not fits or not array.size:
        raise InputError(spec.name, wanted, got)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.argmax(~np.isfinite(array).reshape(len(array), -1).all(axis=1)))
        raise InputError(spec.name, "finite values", f"NaN or infinity in sample {bad}")


def _labels(array: np.ndarray | None, count: int, title: str) -> np.ndarray:
    if array is None or array.shape != (count,) or array.dtype.kind not in "iu":
        got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise ModelError(f"{title}: {LABELS!r} are integers of shape [{count}], not {got}")
    return array.astype(np.int64)
