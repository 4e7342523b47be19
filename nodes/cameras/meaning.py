"""A task as the meaning of a model's tensors (`nodes.meaning`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nodes.meaning import AnswerMeaning, Tensors
from shards.cameras import Result, Task, document, lines
from shards.cameras.picture import decode_picture
from shards.cameras.same import decides_the_same
from swarm.model import ModelInfo
from swarm.wire.picture import MOST_PIXELS, Picture


@dataclass(frozen=True)
class TaskReading:
    """What a task reads of an answer. shape: of the picture's array, empty where it is not known:
    boxes are shares of the model's own picture then."""

    result: Result
    shape: tuple[int, ...] = ()

    def document(self) -> dict[str, Any]:
        return document(self.result)

    def lines(self) -> list[str]:
        return lines(self.result, self.shape)

    def decides_as(self, other: AnswerMeaning) -> bool:
        return isinstance(other, TaskReading) and decides_the_same(self.result, other.result)


class TaskMeaning:
    """Of a version with a task. Raises ManifestError for one that only a later version knows."""

    def __init__(self, info: ModelInfo) -> None:
        self._task, self._picture = Task.of(info.task), info.picture

    @property
    def kind(self) -> str:
        return self._task.kind

    def inputs_of(self, image: np.ndarray) -> dict[str, np.ndarray]:
        return self._task.prepare(image)

    def decoded(self, tensors: Tensors) -> dict[str, np.ndarray]:
        picture = Picture(tensors[self._picture].data)
        image = decode_picture(picture.data, most_pixels=MOST_PIXELS)
        return {**tensors, **self.inputs_of(image)}

    def as_file_takes(self, inputs: Tensors) -> dict[str, np.ndarray]:
        if not self._task.baked:
            return dict(inputs)
        name = self._task.preprocess.input
        return {**inputs, name: self._task.arranged(inputs[name])}

    def read(self, outputs: Tensors, shape: Sequence[int] = ()) -> TaskReading:
        own = self._task.preprocess.height, self._task.preprocess.width
        return TaskReading(self._task.read(outputs, shape or own), tuple(shape))
