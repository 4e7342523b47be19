"""From a manifest and its files to a stage that runs. Runs on a device, without `onnx`.

This is the one place that names the runtime of a stage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shards.errors import ArtifactError, ModelError, ShardsError
from shards.manifest import Manifest, verify, verify_file
from shards.runtimes.by_tensorrt import load_tensorrt_runtime
from shards.runtimes.chain import DeviceChain, DeviceChange, LoadingWay, Tell
from shards.runtimes.device import AUTO, CPU, PROVIDERS, TENSORRT, DeviceChoice, order_of
from shards.runtimes.memory import check_fits, free_bytes
from shards.runtimes.offers import offered_devices
from shards.runtimes.ort import Level, OrtRuntime, trim_memory
from shards.runtimes.prepared import Folders, Settings, load_prepared, runtime_of
from shards.runtimes.runtime import Runtime
from shards.runtimes.stage import StageRuntime
from shards.runtimes.synthetic import TOLERANCE, TOLERANCE_QUANTIZED
from shards.runtimes.vault import Vault, load_from_vault

__all__ = [
    "DeviceChange",
    "DeviceChoice",
    "Fetch",
    "StageRuntime",
    "load_lighter",
    "load_stage",
    "tolerance_of",
]

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes | Path]

_ON_CPU = DeviceChoice()
# A manifest may allow more deviation than usual, but cannot switch the self-test off.
_LARGEST_TOLERANCE = 0.1


def load_stage(
    manifest: Manifest,
    stage: int,
    fetch: Fetch,
    *,
    threads: int = 1,
    level: Level = "all",
    self_test: bool = True,
    folders: Folders | None = None,
    vault: Vault | None = None,
    placement: DeviceChoice = _ON_CPU,
    tell: Tell | None = None,
) -> StageRuntime:
    """Fetch, verify, load, self-test and warm one stage. Blocking: call it in a thread.

    `fetch(file name)` returns the bytes of a file, or its path; its hash is checked before it is
    parsed. With `folders` the stage computes with files that were prepared for this machine, whose
    weights are mapped, and only one process of the machine fetches and optimises. With `vault`
    what was prepared is kept there, of a model that may lie on no disk in plain. `threads` compute
    one run on the CPU, with ONNX Runtime's optimisation `level`. `placement` names the device;
    where that fails the stage is on the next one, and `tell` hears of it, from any thread. Raises
    ManifestError (no such stage), ArtifactError (missing or changed file), ModelError (the runtime
    refuses the model, or computes wrong values), DoesNotFit (too little memory; nothing was
    loaded), and DeviceError (no such device, or option).
    """
    shard = manifest.shard(stage)
    if (kind := manifest.kind) is not None:
        raise ModelError(f"{manifest.model}@{manifest.version} is {kind.about}: {kind.asked}")
    if not shard.file:
        return StageRuntime(shard, None, batchable=manifest.batchable)
    settings = Settings(
        digest=shard.sha256,
        tolerance=tolerance_of(manifest),
        level=level,
        threads=threads,
        inputs=shard.inputs,
        outputs=shard.outputs,
        examples=_examples(manifest.extra),
    )
    if not self_test:
        folders = vault = None

    def fits() -> None:
        what = f"shard {stage} of {manifest.model}@{manifest.version}"
        check_fits(what, shard.bytes, free_bytes())

    def model() -> bytes | Path:
        fits()
        return _fetch(fetch, shard.file, shard.sha256)

    if vault is not None:
        fits()  # what a vault keeps is not mapped
    devices = devices_of(placement)
    if devices == (CPU,) and not placement.options:
        runtime: Runtime = _load(model, settings, folders, vault, self_test=self_test)
    else:
        runtime = _on_device(model(), settings, folders, devices, placement, tell or _log)
        if self_test:
            runtime.self_test(tolerance=settings.tolerance)
    compute_ms = runtime.warm()
    trim_memory()
    return StageRuntime(shard, runtime, batchable=manifest.batchable, compute_ms=compute_ms)


def devices_of(placement: DeviceChoice) -> tuple[str, ...]:
    """The devices to try. Raises DeviceError."""
    if placement.device == CPU:
        return (CPU,)
    return order_of(placement, offered_devices(by_onnxruntime_alone=placement.device == AUTO))


def _on_device(
    model: bytes | Path,
    settings: Settings,
    folders: Folders | None,
    devices: tuple[str, ...],
    placement: DeviceChoice,
    tell: Tell,
) -> DeviceChain:
    """The model on the first of the devices, with the others behind it. Raises ModelError."""

    def on(device: str, stop: threading.Event) -> Runtime:
        options = dict(placement.options) if device == devices[0] else {}
        if device == TENSORRT:
            return load_tensorrt_runtime(model, settings, options, folders, stop)
        return make(device, options)(model)

    def make(device: str, options: dict[str, str]) -> Callable[..., OrtRuntime]:
        provider = PROVIDERS[device]
        # What the device does not compute, the CPU does.
        rest = () if device == CPU else (PROVIDERS[CPU],)
        return partial(runtime_of, settings=settings, providers=[(provider, options), *rest])

    by_onnxruntime = next(device for device in devices if device != TENSORRT)
    return DeviceChain(
        [LoadingWay(device, partial(on, device), device == TENSORRT) for device in devices],
        tell,
        tolerance=settings.tolerance,
        maker=lambda: make(by_onnxruntime, {}),
    )


def _log(change: DeviceChange) -> None:
    log.warning("computing on %s: %s", change.device, change.why)


def load_lighter(
    manifest: Manifest,
    fetch: Fetch,
    *,
    threads: int = 1,
    folders: Folders | None = None,
    vault: Vault | None = None,
) -> OrtRuntime | None:
    """The lighter model, verified, self-tested and warm; None when the version has none.

    `fetch`, `folders` and `vault` are those of `load_stage`. Its `run` does not check the feeds.
    Raises ArtifactError (missing or changed file) and ModelError (the runtime refuses the model, or
    computes wrong values).
    """
    lighter = manifest.lighter
    if lighter is None:
        return None
    settings = Settings(
        digest=lighter.sha256,
        # A lighter model is often quantized. Optimisation may flip a rounding of such a model.
        tolerance=TOLERANCE_QUANTIZED,
        threads=threads,
        examples=_examples(manifest.extra),
    )

    def model() -> bytes | Path:
        what = f"the lighter model of {manifest.model}@{manifest.version}"
        check_fits(what, lighter.bytes, free_bytes())
        return _fetch(fetch, lighter.file, lighter.sha256)

    runtime = _load(model, settings, folders, vault)
    runtime.warm()
    trim_memory()
    return runtime


def _load(
    model: Callable[[], bytes | Path],
    settings: Settings,
    folders: Folders | None,
    vault: Vault | None,
    *,
    self_test: bool = True,
) -> OrtRuntime:
    """A self-tested runtime: of what was prepared, or of the model itself where that fails."""
    try:
        if vault is not None:
            return load_from_vault(vault, model, settings)
        if folders is not None:
            return load_prepared(folders, model, settings)
    except (OSError, ModelError) as error:
        log.warning("loading the weights into memory: no prepared ones can be used (%s)", error)
    runtime = runtime_of(model(), settings)
    if self_test:
        runtime.self_test(tolerance=settings.tolerance)
    return runtime


def _fetch(fetch: Fetch, file: str, digest: str) -> bytes | Path:
    """A verified file. Raises ArtifactError."""
    try:
        data = fetch(file)
        if isinstance(data, Path):
            return verify_file(data, digest, file)
    except ShardsError:
        raise
    except (KeyError, OSError) as error:
        raise ArtifactError(f"artifact {file} is missing: {error}") from error
    return verify(data, digest, file)


def _examples(extra: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors that the model ran with when it was split, by name.

    They are hints for synthetic input. A malformed one is left out.
    """
    raw = extra.get("examples")
    if not isinstance(raw, Mapping):
        return {}
    return {
        str(name): tuple(shape)
        for name, shape in raw.items()
        if isinstance(shape, list) and all(isinstance(d, int) and d >= 0 for d in shape)
    }


def tolerance_of(manifest: Manifest) -> float:
    """The deviation that the self-tests of a version's stages allow."""
    value = manifest.extra.get("tolerance", TOLERANCE)
    if not isinstance(value, (int, float)):
        return TOLERANCE
    return min(float(value), _LARGEST_TOLERANCE)
