"""A sparse change of weights: for some tensors, some of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shards.errors import DeltaError, DeltaFault
from shards.specs import TensorSpec

_VALUE_TYPES = (np.dtype(np.float32), np.dtype(np.float16))


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """Numbers to add to some places of one tensor of the given shape.

    `indices` UINT32 [k] count the tensor's values in C order, ascending, each at most once.
    `values` FP32 or FP16 [k].
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WeightDelta:
    """Changes to the weights of a shard, by the names of its tensors.

    `base` is the SHA-256 of the shard's artifact: tensors of another artifact may have the same
    names and shapes, and mean something else.
    """

    base: str
    tensors: Mapping[str, SparseTensor]


def check_delta(delta: WeightDelta, specs: Mapping[str, TensorSpec], base: str) -> None:
    """Raise DeltaError unless the delta is for this base, and fits its weights.

    `specs` are the weights' specifications, `base` is the SHA-256 of their artifact. Time and
    memory depend on the delta's size only.
    """
    if delta.base != base:
        raise DeltaError(
            DeltaFault.BASE, f"the delta is for base {delta.base[:12]!r}, this is {base[:12]!r}"
        )
    for name, sparse in delta.tensors.items():
        spec = specs.get(name)
        if spec is None:
            raise DeltaError(DeltaFault.TENSOR, f"there is no weight {name!r}", name)
        _check_sparse(name, sparse, spec)


def check_values(values: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec]) -> None:
    """Raise DeltaError unless these whole tensors fit the weights, and are finite."""
    for name, array in values.items():
        spec = specs.get(name)
        if spec is None:
            raise DeltaError(DeltaFault.TENSOR, f"there is no weight {name!r}", name)
        if array.dtype != spec.dtype:
            fault = f"weight {name!r} is {spec}, not {array.dtype.name}"
            raise DeltaError(DeltaFault.DATATYPE, fault, name)
        if array.shape != spec.shape:
            fault = f"weight {name!r} is {spec}, the tensor has the shape {array.shape}"
            raise DeltaError(DeltaFault.SHAPE, fault, name)
        if not np.isfinite(array).all():
            raise DeltaError(DeltaFault.NOT_FINITE, f"weight {name!r} is not finite", name)


def _check_sparse(name: str, sparse: SparseTensor, spec: TensorSpec) -> None:
    indices, values = sparse.indices, sparse.values
    if tuple(sparse.shape) != spec.shape:
        fault = f"weight {name!r} is {spec}, the delta is for the shape {tuple(sparse.shape)}"
        raise DeltaError(DeltaFault.SHAPE, fault, name)
    if indices.dtype != np.uint32 or values.dtype not in _VALUE_TYPES:
        fault = f"{name!r}: indices are uint32 and values float32 or float16, not " + (
            f"{indices.dtype.name} and {values.dtype.name}"
        )
        raise DeltaError(DeltaFault.DATATYPE, fault, name)
    if indices.ndim != 1 or values.shape != indices.shape:
        fault = f"{name!r}: {indices.shape} indices with {values.shape} values"
        raise DeltaError(DeltaFault.SHAPE, fault, name)
    if not indices.size:
        return
    if indices.size > 1:
        if (indices[1:] < indices[:-1]).any():
            raise DeltaError(DeltaFault.UNSORTED, f"{name!r}: indices do not ascend", name)
        if (indices[1:] == indices[:-1]).any():
            raise DeltaError(DeltaFault.DUPLICATE, f"{name!r}: an index comes twice", name)
    size = math.prod(spec.shape)
    if int(indices[-1]) >= size:
        fault = f"{name!r}: index {int(indices[-1])} of {size} values"
        raise DeltaError(DeltaFault.OUT_OF_RANGE, fault, name)
    if not np.isfinite(values).all():
        raise DeltaError(DeltaFault.NOT_FINITE, f"{name!r}: a value is not finite", name)
