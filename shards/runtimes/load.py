"""From a manifest and its files to a stage that runs. Runs on a device, without `onnx`.

This is the one place that names the runtime of a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shards.errors import ArtifactError, ShardsError
from shards.manifest import Manifest, verify
from shards.runtimes.ort import Level, OrtRuntime, trim_memory
from shards.runtimes.stage import StageRuntime
from shards.runtimes.synthetic import TOLERANCE, TOLERANCE_QUANTIZED

__all__ = ["StageRuntime", "load_lighter", "load_stage", "tolerance_of"]

_CPU = ("CPUExecutionProvider",)
# A manifest may allow more deviation than usual, but cannot switch the self-test off.
_LARGEST_TOLERANCE = 0.1


def load_stage(
    manifest: Manifest,
    stage: int,
    fetch: Callable[[str], bytes],
    *,
    threads: int = 1,
    providers: Sequence[str] = _CPU,
    level: Level = "all",
    self_test: bool = True,
) -> StageRuntime:
    """Fetch, verify, load, self-test and warm one stage. Blocking: call it in a thread.

    `fetch(file name)` returns the bytes of a file; its hash is checked before the file is parsed.
    `threads` compute one run, with ONNX Runtime's execution `providers` and its optimisation
    `level`. Raises ManifestError (no such stage), ArtifactError (missing or changed file),
    ModelError (the runtime refuses the model, or computes wrong values).
    """
    shard = manifest.shard(stage)
    if not shard.file:
        return StageRuntime(shard, None, batchable=manifest.batchable)
    data = _fetch(fetch, shard.file, shard.sha256)
    runtime = OrtRuntime(
        data,
        inputs=shard.inputs,
        outputs=shard.outputs,
        threads=threads,
        providers=providers,
        level=level,
        examples=_examples(manifest.extra),
    )
    del data
    if self_test:
        runtime.self_test(tolerance=tolerance_of(manifest))
    compute_ms = runtime.warm()
    trim_memory()
    return StageRuntime(shard, runtime, batchable=manifest.batchable, compute_ms=compute_ms)


def load_lighter(
    manifest: Manifest, fetch: Callable[[str], bytes], *, threads: int = 1
) -> OrtRuntime | None:
    """The lighter model, verified, self-tested and warm; None when the version has none.

    Its `run` does not check the feeds. Raises ArtifactError (missing or changed file) and
    ModelError (the runtime refuses the model, or computes wrong values).
    """
    lighter = manifest.lighter
    if lighter is None:
        return None
    data = _fetch(fetch, lighter.file, lighter.sha256)
    runtime = OrtRuntime(data, threads=threads, examples=_examples(manifest.extra))
    del data
    # A lighter model is often quantized. Optimisation may flip a rounding of a quantized model.
    runtime.self_test(tolerance=TOLERANCE_QUANTIZED)
    runtime.warm()
    trim_memory()
    return runtime


def _fetch(fetch: Callable[[str], bytes], file: str, digest: str) -> bytes:
    try:
        data = fetch(file)
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
