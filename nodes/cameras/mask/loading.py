"""The detector of `--mask`, on this device: of a file, or of the mesh, whole and verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from nodes.cameras.mask.proof import MaskProof
from nodes.cameras.mask.regions import checked
from nodes.cameras.settings import CameraOptions
from nodes.config import NodeConfig
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.loaded import Loaded, load
from shards.cameras.results import Detections
from shards.cameras.task import Task
from shards.cameras.wish import Wish, settle
from shards.errors import TaskError
from shards.manifest import Manifest
from shards.runtimes.ort import OrtRuntime
from swarm.errors import InvalidArgument, NotFound, Unavailable
from swarm.mesh import Mesh

# A detector on this device, as the mask needs it: whole, and with a low threshold.


class Runs(Protocol):
    """As `shards.runtimes.ort.OrtRuntime` has it."""

    def run(self, feeds: Mapping[str, np.ndarray], /) -> Mapping[str, np.ndarray]: ...


class TaskDetector:
    """A `MaskDetector` of a model and its task. parts: the model, or its stages in their order.
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


log = logging.getLogger("swarm.camera")

AGAIN_AFTER = 2.0  # seconds, while the mesh has no such model


class MaskModel:
    """Loads the detector that `--mask` names: `FILE.onnx`, or `NAME[@VERSION]`.

    The version that serves when the node starts is taken until the node ends. `close` behind it.
    """

    def __init__(self, mesh: Mesh, config: NodeConfig) -> None:
        self._mesh = mesh
        self._config = config
        self._loaded: Loaded | OrtRuntime | None = None

    async def load(self) -> TaskDetector:
        """Waits for a model that the mesh does not have yet: until then nothing leaves. Raises
        `InvalidArgument` for a model that is no detector, and for one that does not find what
        `--mask-proof` shows; `ShardsError` for a file that ONNX Runtime refuses."""
        camera = self._config.of(CameraOptions)
        parts, task = await (self._of_file() if is_file(camera.mask) else self._of_mesh())
        detector = TaskDetector(parts, task, camera.mask_threshold)
        proof = MaskProof.of(camera.mask_proof)
        boxes = await asyncio.to_thread(detector.find, proof.image)
        if not proof.is_shown_by(checked(np.asarray(boxes))):
            raise InvalidArgument(
                f"--mask {camera.mask}: it does not find "
                + ("a drawn face" if not camera.mask_proof else f"anything in {camera.mask_proof}")
                + ": --mask-proof names a picture that shows what is to be masked"
            )
        return detector

    async def _of_file(self) -> tuple[Sequence[Runs], Task]:
        path = Path(self._config.of(CameraOptions).mask)

        def read() -> OrtRuntime:
            return OrtRuntime(path.read_bytes(), threads=self._config.threads)

        try:
            runtime = self._loaded = await asyncio.to_thread(read)
        except OSError as error:
            raise InvalidArgument(f"--mask: {error}") from None
        try:
            task, notes = settle(Wish("detect"), runtime.inputs, runtime.outputs)
        except TaskError as error:
            raise InvalidArgument(
                f"--mask {path}: {error}. Split the file with `swarm model split --task detect` "
                "and what it asks for, push it, and name the model: --mask NAME"
            ) from None
        log.info("the detector of --mask: %s", "; ".join(notes))
        return [runtime], task

    async def _of_mesh(self) -> tuple[Sequence[Runs], Task]:
        name, _, version = self._config.of(CameraOptions).mask.partition("@")
        said = ""
        while True:
            try:
                return await self._fetched(name, version)
            except (NotFound, Unavailable) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("no frame leaves: the detector of --mask: %s", error)
                await asyncio.sleep(AGAIN_AFTER)

    async def _fetched(self, name: str, version: str) -> tuple[Sequence[Runs], Task]:
        mesh, config = self._mesh, self._config
        version = version or await mesh.catalog.version_for(name, "", "", "")
        info = await mesh.catalog.info(name, version)
        manifest = Manifest.from_json(await mesh.registry.manifest(name, version))
        task = Task.of(manifest.parts.get("task"))
        artifacts = NodeArtifacts(
            mesh.registry, config.cache_folder, config.cache_limit, config.artifact_key
        )
        stages = [stage.stage for stage in info.stages]
        loaded = await load(
            mesh, artifacts, config, info, edge=True, lighter=False, stages=stages, urgent=True
        )
        self._loaded = loaded
        first = [] if loaded.edge is None else [loaded.edge]
        log.info("the detector of --mask: %s@%s", name, version)
        return [*first, *(loaded.stages[number] for number in stages)], task

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()


def is_file(text: str) -> bool:
    """Whether `--mask` names a file of this device, and not a model of the mesh."""
    return text.endswith(".onnx") or "/" in text
