"""From a model to a TensorRT runtime: the engine of the cache, or one that a child builds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shards.errors import DeviceError, DoesNotFit, ModelError, RunError
from shards.runtimes.engine import (
    PRECISIONS,
    Engine,
    EngineRequest,
    build_in_child,
    engine_key,
    shapes_of,
    timing_key,
)
from shards.runtimes.offers import load_tensorrt
from shards.runtimes.ort import OrtRuntime, plain_answer
from shards.runtimes.prepared import Folders, Settings
from shards.runtimes.synthetic import random_feeds
from shards.runtimes.tensorrt import Cuda, TensorRtRuntime

PLAN, TIMING = "engine.plan", "timing.cache"
MOST_ROWS = 16
OPTIONS = ("precision", "max_rows", "workspace_mb")
# Bytes of the GPU for each byte of the model's file: the weights and the activations of a run.
ON_GPU = 2.0

Build = Callable[[bytes, EngineRequest, bytes, threading.Event], Engine]


def load_tensorrt_runtime(
    model: bytes | Path,
    settings: Settings,
    options: Mapping[str, str],
    folders: Folders | None,
    stop: threading.Event,
    build: Build = build_in_child,
) -> TensorRtRuntime:
    """Blocking, for minutes where no engine is cached; ends soon once `stop` is set.

    Without `folders` engines are not kept. A cached file that is corrupt, and one of another GPU,
    version, profile or model, is never read: the first is made again, the second has another key.
    Raises ModelError (and DoesNotFit), DeviceError.
    """
    trt, library = load_tensorrt()
    cuda = Cuda(library)
    data = model.read_bytes() if isinstance(model, Path) else model
    _check_gpu_memory(cuda, len(data))
    plain = OrtRuntime(model, inputs=settings.inputs, outputs=settings.outputs, level="none")
    inputs, outputs = plain.inputs, plain.outputs
    plain.close()
    request = _request(options, settings, inputs)
    try:
        gpu = cuda.gpu()
    except RunError as error:
        raise DeviceError(f"no GPU: {error}") from error
    version = str(trt.__version__)

    def built(timing: bytes = b"") -> Engine:
        return build(data, request, timing, stop)

    plan = (
        built().plan
        if folders is None
        else _kept(folders, engine_key(request, version, gpu), timing_key(version, gpu), built)
    )
    answer = plain_answer(
        model, outputs, random_feeds(inputs, settings.examples), tolerance=settings.tolerance
    )
    return TensorRtRuntime(
        plan,
        inputs=inputs,
        outputs=outputs,
        trt=trt,
        cuda=library,
        answer=answer,
        examples=settings.examples,
    )


def _request(
    options: Mapping[str, str], settings: Settings, inputs: tuple[Any, ...]
) -> EngineRequest:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise DeviceError(f"option {unknown[0]!r} of tensorrt: it takes {', '.join(OPTIONS)}")
    free = next((spec.name for spec in inputs if spec.any_rank), None)
    if free is not None:
        raise DeviceError(f"input {free!r} may have any number of axes, and an engine needs one")
    precision = options.get("precision", "fp32")
    if precision not in PRECISIONS:
        raise DeviceError(f"precision {precision!r}: it is {', '.join(PRECISIONS)}")
    try:
        rows = int(options.get("max_rows", MOST_ROWS))
        workspace = int(options.get("workspace_mb", 1024)) << 20
    except ValueError as error:
        raise DeviceError(f"options of tensorrt: {error}") from None
    return EngineRequest(
        settings.digest, precision, workspace, shapes_of(inputs, settings.examples or {}, rows)
    )


class _NothingYet(Exception):
    """No engine of this GPU was built before."""


def _kept(folders: Folders, key: str, timing: str, built: Callable[[bytes], Engine]) -> bytes:
    """The plan from the cache. Raises ModelError where the cache cannot be used."""
    fresh: list[Engine] = []

    def make(folder: Path) -> None:
        fresh.append(built(known))
        (folder / PLAN).write_bytes(fresh[0].plan)

    def keep_timing(folder: Path) -> None:
        if not fresh:
            raise _NothingYet
        (folder / TIMING).write_bytes(fresh[0].timing)

    try:
        try:
            known = (folders.made(timing, keep_timing) / TIMING).read_bytes()
        except _NothingYet:
            known = b""
        plan = (folders.made(key, make) / PLAN).read_bytes()
        if fresh:
            folders.made(timing, keep_timing)
    except OSError as error:
        raise ModelError(f"the engine's cache cannot be used: {error}") from error
    return plan


def _check_gpu_memory(cuda: Cuda, file_bytes: int) -> None:
    need = int(file_bytes * ON_GPU)
    try:
        have = cuda.free_bytes()
    except RunError as error:
        raise DeviceError(f"no GPU: {error}") from error
    if need > have:
        raise DoesNotFit(
            f"RESOURCE_EXHAUSTED: the model needs {need / 1e9:.1f} GB on the GPU, it has "
            f"{have / 1e9:.1f} GB free"
        )
