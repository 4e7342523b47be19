"""A detector on this device, as the mask needs it: whole, and with a low threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from shards.cameras.results import Detections
from shards.cameras.task import Task
from swarm.errors import InvalidArgument


class Runs(Protocol):
    """As `shards.runtimes.ort.OrtRuntime` has it."""

    def run(self, feeds: Mapping[str, np.ndarray], /) -> Mapping[str, np.ndarray]: ...


class TaskDetector:
    """A `Detector` of a model and its task. parts: the model, or its stages in their order.
    threshold: the least score of a box. Raises `InvalidArgument` for a model that is no detector,
    and for one whose graph itself drops boxes above the threshold."""

    def __init__(self, parts: Sequence[Runs], task: Task, threshold: float) -> None:
        if task.kind != "detect":
            raise InvalidArgument(f"--mask: the model is for {task.kind}, a detector is needed")
        if task.baked and task.postprocess.threshold > threshold:
            raise InvalidArgument(
                f"--mask: the model's graph drops boxes below {task.postprocess.threshold:g}, the "
                f"mask needs them from {threshold:g} on: split it with --threshold {threshold:g}"
            )
        lower = replace(task.postprocess, threshold=threshold)
        self._task = replace(task, postprocess=lower)
        self._parts = tuple(parts)

    def find(self, image: np.ndarray) -> np.ndarray:
        """float32 [n, 4]: left, top, right, bottom as shares. image: uint8 [height, width, 3]."""
        return self.detections(image).boxes

    def detections(self, image: np.ndarray) -> Detections:
        """As `find`, with scores and classes. Raises `ShardsError`."""
        tensors: Mapping[str, np.ndarray] = self._task.prepare(image)
        for part in self._parts:
            tensors = part.run(tensors)
        result = self._task.read(tensors, image.shape)
        assert isinstance(result, Detections)  # of this kind of task
        return result
