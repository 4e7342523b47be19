"""How a frame becomes a model's input, and the answer becomes what people understand: by the task
that the version's manifest declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import cv2
import numpy as np

from shards.cameras.task import Result, Task
from shards.errors import ManifestError
from shards.manifest import Manifest
from shards.specs import TensorSpec
from swarm.errors import InvalidArgument
from swarm.mesh import Mesh
from swarm.wire.picture import Picture

MOST_KEPT = 4  # versions whose tasks are kept: the one that serves, and its neighbours


class PictureTask(Protocol):
    """Of one version of a model."""

    def prepare(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs of a picture, [height, width, 3], uint8, RGB."""
        ...

    def read(self, outputs: Mapping[str, np.ndarray], shape: Sequence[int]) -> Result | None:
        """The outputs as results, None where the model declares no task. shape: the picture's:
        height and width come first."""
        ...


class RawPictures:
    """Of a model that declares no task, and takes uint8 pixels: they are resized, and its outputs
    stay as they are. Raises `InvalidArgument` for a model whose input is no picture."""

    def __init__(self, inputs: tuple[TensorSpec, ...], model: str) -> None:
        spec = inputs[0]
        shape = spec.shape
        is_picture = spec.datatype == "UINT8" and len(shape) == 4 and 3 in (shape[1], shape[3])
        if len(inputs) != 1 or not is_picture:
            raise InvalidArgument(
                f"model {model!r} takes {spec.name} {spec} and does not say how a picture becomes "
                "that: split it with `swarm model split --task …`"
            )
        self._name = spec.name
        self._is_last = shape[3] == 3
        height, width = shape[1:3] if self._is_last else shape[2:]
        self._size = (width, height) if width > 0 and height > 0 else None

    def prepare(self, image: np.ndarray) -> dict[str, np.ndarray]:
        if self._size is not None and self._size != image.shape[1::-1]:
            image = cv2.resize(image, self._size, interpolation=cv2.INTER_LINEAR)
        if not self._is_last:
            image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return {self._name: image[None]}

    def read(self, outputs: Mapping[str, np.ndarray], shape: Sequence[int]) -> None:
        """Nothing that people understand."""


def jpeg_of(task: Task, image: np.ndarray, quality: int) -> dict[str, np.ndarray]:
    """The model's inputs with a JPEG of the model's own size in place of the picture's tensor:
    smaller than one of the camera's size, and decoded sooner. image: as of `Task.prepare`."""
    fitted = np.ascontiguousarray(task.fitted(image)[..., ::-1])
    done, data = cv2.imencode(".jpg", fitted, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise InvalidArgument("a picture cannot be encoded as JPEG")
    return {task.preprocess.input: Picture(data.tobytes()).tensor}


def task_of(manifest: Manifest) -> PictureTask:
    """Raises `InvalidArgument` for a model that takes no picture, `ManifestError` for a task that
    this version does not know."""
    if "task" not in manifest.parts:
        return RawPictures(manifest.inputs, manifest.model)
    return Task.of(manifest.parts.get("task"))


class Tasks:
    """The tasks of the versions that serve, read once each."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._kept: dict[tuple[str, str], PictureTask | InvalidArgument | ManifestError] = {}

    async def of(self, model: str, version: str) -> PictureTask:
        """Raises `InvalidArgument`, `ManifestError`, `NotFound`, `Unavailable`."""
        key = (model, version)
        if key not in self._kept:
            found: PictureTask | InvalidArgument | ManifestError
            manifest = Manifest.from_json(await self._mesh.registry.manifest(model, version))
            try:
                found = task_of(manifest)
            except (InvalidArgument, ManifestError) as error:
                found = error
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found
        task = self._kept[key]
        if isinstance(task, Exception):
            raise task
        return task
