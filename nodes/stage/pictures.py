"""Pictures that come in place of a tensor: decoded and prepared as the model's manifest says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nodes.features import features, first
from shards.errors import ShardsError
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo
from swarm.wire.picture import PICTURES, is_encoded
from swarm.wire.tensors import REFERRED, known_codecs

EXTRA = "pip install 'swarm-mesh[perception]'"


def can_decode() -> bool:
    """Whether this node has what it takes to decode pictures. No library is imported."""
    return PICTURES in codecs_read()


def codecs_read(refers: bool = False) -> list[str]:
    """What this node reads, as it tells others: of tensors, and of features. refers: whether that
    may be where its inputs are."""
    more = (codec for feature in features() for codec in feature.codecs())
    return [*known_codecs(), *[REFERRED] * refers, *more]


class PictureReader:
    """The input of a model version that may come as a picture."""

    __slots__ = ("_info", "_name")

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._name = info.picture

    def comes_as_picture(self, tensors: Mapping[str, np.ndarray]) -> bool:
        """Whether these are to be decoded before anything is computed of them."""
        array = tensors.get(self._name) if self._name else None
        return array is not None and is_encoded(array)

    def decoded(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The model's inputs, the picture as what it takes for it. Takes milliseconds, and as much
        memory as the picture has pixels: call it in a thread. Raises `InvalidArgument`, also where
        this node lacks OpenCV, or knows a task that only a later version knows."""
        if not can_decode():
            raise InvalidArgument(
                f"this node decodes no pictures: {EXTRA} there, or send the picture's tensor"
            )
        try:
            meaning = first(lambda feature: feature.meaning(self._info))
            assert meaning is not None, "a feature that reads pictures says what they mean"
            return meaning.decoded(tensors)
        except ShardsError as error:
            raise InvalidArgument(str(error)) from None
