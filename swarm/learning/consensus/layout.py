"""Named tensors as one flat vector of float32, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np

from swarm.errors import InvalidArgument

Vector = np.ndarray
"""float32, one dimension, as long as its layout."""

MOST_PARAMETERS = 1 << 28  # 1 GiB as float32


class Layout:
    """Names and shapes of the parameters that nodes learn together, in the order of their names.

    size: parameters in all. Raises `InvalidArgument` where there are none, or too many.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        self.spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, shape in self.shapes.items():
            start, end = end, end + math.prod(shape)
            self.spans[name] = (start, end)
        self.size = end
        if not 0 < end <= MOST_PARAMETERS:
            raise InvalidArgument(f"{end} parameters to learn: 1 to {MOST_PARAMETERS} are possible")

    @classmethod
    def of(cls, parameters: Mapping[str, np.ndarray]) -> Layout:
        """The layout of these arrays."""
        return cls({name: array.shape for name, array in parameters.items()})

    def flatten(self, parameters: Mapping[str, np.ndarray]) -> Vector:
        """A new vector with the values of the arrays.

        Raises `InvalidArgument` for another name, or a shape other than the layout's.
        """
        if parameters.keys() != self.shapes.keys():
            raise InvalidArgument(
                f"parameters {sorted(parameters)} where {list(self.shapes)} are learned"
            )
        vector = np.empty(self.size, np.float32)
        for name, (start, end) in self.spans.items():
            array = parameters[name]
            if array.shape != self.shapes[name]:
                raise InvalidArgument(
                    f"parameter {name!r} has shape {array.shape}, not {self.shapes[name]}"
                )
            vector[start:end] = array.reshape(-1)
        return vector

    def unflatten(self, vector: Vector) -> dict[str, np.ndarray]:
        """New arrays with the vector's values."""
        return {
            name: vector[start:end].reshape(self.shapes[name]).copy()
            for name, (start, end) in self.spans.items()
        }


def mean_of(vectors: Sequence[Vector]) -> Vector:
    """The mean of vectors, added up in float64: the same bits for the same vectors in one order."""
    total = np.zeros(len(vectors[0]))
    for vector in vectors:
        total += vector
    return (total / len(vectors)).astype(np.float32)


def digest_of(vector: Vector) -> bytes:
    """SHA-256 of a vector's bytes, little-endian."""
    return sha256(vector.astype("<f4", copy=False).tobytes()).digest()
