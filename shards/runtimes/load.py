"""From a manifest and its files to a stage that runs. Runs on a device, without `onnx`.

This is the one place that names the runtime of a stage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shards.errors import ArtifactError, ModelError, ShardsError
from shards.manifest import Manifest, verify, verify_file
from shards.runtimes.ort import Level, OrtRuntime, trim_memory
from shards.runtimes.prepared import Folders, Settings, load_prepared
from shards.runtimes.stage import StageRuntime
from shards.runtimes.synthetic import TOLERANCE, TOLERANCE_QUANTIZED

__all__ = ["Fetch", "StageRuntime", "load_lighter", "load_stage", "tolerance_of"]

log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes | Path]

_CPU = ("CPUExecutionProvider",)
# A manifest may allow more deviation than usual, but cannot switch the self-test off.
_LARGEST_TOLERANCE = 0.1


def load_stage(
    manifest: Manifest,
    stage: int,
    fetch: Fetch,
    *,
    threads: int = 1,
    providers: Sequence[str] = _CPU,
    level: Level = "all",
    self_test: bool = True,
    folders: Folders | None = None,
) -> StageRuntime:
    """Fetch, verify, load, self-test and warm one stage. Blocking: call it in a thread.

    `fetch(file name)` returns the bytes of a file, or its path; its hash is checked before it is
    parsed. With `folders` the stage computes with files that were prepared for this machine, whose
    weights are mapped, and only one process of the machine fetches and optimises. `threads` compute
    one run, with ONNX Runtime's execution `providers` and its optimisation `level`. Raises
    ManifestError (no such stage), ArtifactError (missing or changed file), ModelError (the runtime
    refuses the model, or computes wrong values).
    """
    shard = manifest.shard(stage)
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
    # Other providers compile for a device of their own.
    where = folders if tuple(providers) == _CPU and self_test else None
    model = partial(_fetch, fetch, shard.file, shard.sha256)
    runtime = _load(model, settings, where, providers=providers, self_test=self_test)
    compute_ms = runtime.warm()
    trim_memory()
    return StageRuntime(shard, runtime, batchable=manifest.batchable, compute_ms=compute_ms)


def load_lighter(
    manifest: Manifest, fetch: Fetch, *, threads: int = 1, folders: Folders | None = None
) -> OrtRuntime | None:
    """The lighter model, verified, self-tested and warm; None when the version has none.

    `fetch` and `folders` are those of `load_stage`. Its `run` does not check the feeds. Raises
    ArtifactError (missing or changed file) and ModelError (the runtime refuses the model, or
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
    runtime = _load(partial(_fetch, fetch, lighter.file, lighter.sha256), settings, folders)
    runtime.warm()
    trim_memory()
    return runtime


def _load(
    model: Callable[[], bytes | Path],
    settings: Settings,
    folders: Folders | None,
    *,
    providers: Sequence[str] = _CPU,
    self_test: bool = True,
) -> OrtRuntime:
    """A self-tested runtime: of prepared files, or of the model itself where that fails."""
    if folders is not None:
        try:
            return load_prepared(folders, model, settings)
        except (OSError, ModelError) as error:
            log.warning("loading the weights into memory: they cannot be mapped (%s)", error)
    runtime = OrtRuntime(
        model(),
        inputs=settings.inputs,
        outputs=settings.outputs,
        threads=settings.threads,
        providers=providers,
        level=settings.level,
        examples=settings.examples,
    )
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
