"""Tensor specifications, with the datatype names of the Open Inference Protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards.errors import ManifestError

# https://github.com/open-inference/open-inference-protocol, "Tensor Data Types". BF16 and BYTES
# are missing: numpy has no such type of a fixed size, so no runtime could be fed with one.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
DATATYPES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}

# From ONNX Runtime's names of these types (`NodeArg.type`).
ORT_TYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}


@dataclass(frozen=True, slots=True)
class Example:
    """Shape and values of a tensor in one run of a model, from which synthetic ones are drawn.

    `values` are the least and the largest finite value, and of floats the mean and the standard
    deviation; empty where there is none.
    """

    shape: tuple[int, ...]
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, array: np.ndarray) -> Example:
        """What is seen of an array. Values keep six digits."""
        kind = array.dtype.kind
        seen = array[np.isfinite(array)] if kind == "f" else array
        if not seen.size:
            return cls(array.shape)
        if kind != "f":
            return cls(array.shape, (int(seen.min()), int(seen.max())))
        wide = seen.astype(np.float64)
        figures = (wide.min(), wide.max(), wide.mean(), wide.std())
        return cls(array.shape, tuple(float(f"{each:.6g}") for each in figures))

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        return {"shape": list(self.shape), "values": list(self.values)}

    @classmethod
    def from_dict(cls, raw: object) -> Example | None:
        """What `to_dict` wrote. It is a hint: one that is malformed is none."""
        if not isinstance(raw, Mapping):
            return None
        shape, values = raw.get("shape"), raw.get("values", [])
        if not isinstance(shape, list) or not isinstance(values, list):
            return None
        if not all(isinstance(dim, int) and dim >= 0 for dim in shape):
            return None
        fits = len(values) in (0, 2, 4) and all(
            isinstance(each, int | float) and math.isfinite(each) for each in values
        )
        if not fits or values[:1] > values[1:2]:
            return None
        return cls(tuple(shape), tuple(values))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of one tensor.

    `datatype` is one of `DTYPES`; another one raises KeyError. `shape` holds -1 for a dynamic
    dimension. `batch` says that axis 0 is a dynamic batch axis: its rows are independent samples,
    so requests may be concatenated along it. `any_rank` says that a tensor may have any number of
    axes: the shape is empty then, and no check looks at it. `example` is the tensor as it was when
    the model was split, None where nothing was seen. `dtype` is the numpy type in native
    byte order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch: bool = False
    any_rank: bool = False
    example: Example | None = field(default=None, compare=False)
    # A field, not a property: each run of a stage compares it with the tensors that arrive.
    dtype: np.dtype[Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DTYPES[self.datatype])

    @property
    def nbytes(self) -> int:
        """Bytes of one tensor; a dynamic dimension counts as in the example, without one as 1."""
        shape = self.shape if self.example is None else self.example.shape
        return math.prod(dim for dim in shape if dim != -1) * self.dtype.itemsize

    def __str__(self) -> str:
        if self.any_rank:
            return f"{self.datatype} of any shape"
        return f"{self.datatype}[{','.join('?' if d == -1 else str(d) for d in self.shape)}]"

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON. `batch` and `any_rank` are left out when false."""
        out: dict[str, Any] = {
            "name": self.name,
            "datatype": self.datatype,
            "shape": list(self.shape),
        }
        flags = {"batch": self.batch, "any_rank": self.any_rank}
        out |= {flag: True for flag, is_set in flags.items() if is_set}
        return out | ({} if self.example is None else {"example": self.example.to_dict()})

    @classmethod
    def from_dict(cls, raw: object) -> TensorSpec:
        """The specification that `to_dict` wrote. Raises ManifestError for anything else."""
        if not isinstance(raw, Mapping):
            raise ManifestError(f"a tensor specification is an object, not {type(raw).__name__}")
        name, datatype, shape = raw.get("name"), raw.get("datatype"), raw.get("shape")
        if not isinstance(name, str) or not name:
            raise ManifestError("a tensor specification has no name")
        if not isinstance(datatype, str) or datatype not in DTYPES:
            raise ManifestError(
                f"tensor {name!r}: unsupported datatype {datatype!r:.80}: there are "
                f"{', '.join(DTYPES)}"
            )
        if not isinstance(shape, list) or not all(
            isinstance(dim, int) and not isinstance(dim, bool) and dim >= -1 for dim in shape
        ):
            raise ManifestError(f"tensor {name!r}: shape must be integers, -1 for dynamic")
        any_rank = raw.get("any_rank", False)
        if not isinstance(any_rank, bool) or (any_rank and shape):
            raise ManifestError(f"tensor {name!r}: any_rank must be a boolean, without a shape")
        batch = raw.get("batch", False)
        if not isinstance(batch, bool) or (batch and not shape and not any_rank):
            raise ManifestError(f"tensor {name!r}: batch must be a boolean, and needs an axis 0")
        example = Example.from_dict(raw.get("example"))
        return cls(name, datatype, tuple(shape), batch, any_rank, example)


def spec_of(name: str, array: np.ndarray) -> TensorSpec:
    """An array's specification, no axis dynamic. Raises KeyError for unsupported types."""
    return TensorSpec(name, DATATYPES[array.dtype], array.shape)
