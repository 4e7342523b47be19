"""The weights of one shard, by name: read from its artifact, changed by deltas, never in place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from shards.errors import DeltaError, DeltaFault
from shards.specs import TensorSpec
from shards.weights.delta import WeightDelta, check_delta, check_values
from shards.weights.onnx_file import OnnxFile


class MasterWeights:
    """One state of a shard's weights. It never changes: each change makes a new one.

    Tensors that a change does not touch are shared between the two. `base` is the SHA-256 of the
    artifact that the weights come from; it stays the same through all changes. `specs` are the
    names, datatypes (FP32, FP16, FP64) and shapes of the weights.
    """

    def __init__(
        self, base: str, specs: Mapping[str, TensorSpec], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """`arrays` are the values of all `specs`. Nobody writes to them from now on."""
        self.base = base
        self.specs = specs
        self._arrays = dict(arrays)
        for array in self._arrays.values():
            array.flags.writeable = False

    @classmethod
    def of(cls, artifact: bytes | memoryview, base: str) -> MasterWeights:
        """The weights of a shard's file, copied. `base` is the SHA-256 that the manifest names.

        Raises ModelError for bytes that are no ONNX model.
        """
        file = OnnxFile(artifact)
        return cls(base, file.specs, {name: file.weight(name) for name in file.specs})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all weights, in the order of the file."""
        return tuple(self._arrays)

    def get(self, name: str) -> np.ndarray:
        """A weight, read-only. Raises DeltaError for a name that is not there."""
        try:
            return self._arrays[name]
        except KeyError:
            raise DeltaError(DeltaFault.TENSOR, f"there is no weight {name!r}", name) from None

    def apply(self, delta: WeightDelta) -> MasterWeights:
        """The weights with the delta's values added.

        Raises DeltaError, also where a sum does not fit into the weight's datatype. These weights
        stay as they are in any case.
        """
        check_delta(delta, self.specs, self.base)
        changed: dict[str, np.ndarray] = {}
        for name, sparse in delta.tensors.items():
            array = self._arrays[name].copy()
            flat = array.reshape(-1)
            with np.errstate(over="ignore"):
                flat[sparse.indices] += sparse.values.astype(array.dtype)
            if not np.isfinite(flat[sparse.indices]).all():
                fault = f"weight {name!r}: a sum does not fit into {self.specs[name].datatype}"
                raise DeltaError(DeltaFault.NOT_FINITE, fault, name)
            changed[name] = array
        return self._with(changed)

    def replace(self, values: Mapping[str, np.ndarray]) -> MasterWeights:
        """The weights with some tensors replaced by copies of these. Raises DeltaError."""
        check_values(values, self.specs)
        return self._with({name: np.array(value, order="C") for name, value in values.items()})

    def digest(self) -> str:
        """SHA-256 over the names, datatypes, shapes and bytes of all weights, hexadecimal.

        Equal weights of equal names give equal digests, in whichever order the files hold them.
        """
        digest = hashlib.sha256()
        for name in sorted(self._arrays):
            digest.update(f"{name}\0{self.specs[name]}\0".encode())
            digest.update(np.ascontiguousarray(self._arrays[name]).data)
        return digest.hexdigest()

    def _with(self, changed: Mapping[str, np.ndarray]) -> MasterWeights:
        return MasterWeights(self.base, self.specs, {**self._arrays, **changed})
