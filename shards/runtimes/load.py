"""From a manifest and its artifacts to a stage that runs. The side of a device: no ONNX needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shards.errors import ArtifactError, ShardsError
from shards.manifest import Manifest, Shard, verify
from shards.runtimes.ort import Level, OrtRuntime, trim_memory
from shards.runtimes.runtime import CancelToken, Runtime, check_feeds
from shards.runtimes.synthetic import TOLERANCE, TOLERANCE_QUANTIZED

_CPU = ("CPUExecutionProvider",)


class StageRuntime:
    """One stage, ready to serve. `run` may be called from several threads at once.

    `runtime` is None for a stage without layers, which passes everything through. `compute_ms` is
    the median of the warm-up at batch 1.
    """

    def __init__(
        self, shard: Shard, runtime: Runtime | None, *, batchable: bool, compute_ms: float = 0.0
    ) -> None:
        self.shard = shard
        self.runtime = runtime
        self.batchable = batchable
        self.compute_ms = compute_ms
        self._sends = tuple(spec.name for spec in shard.sends)
        self._inputs = tuple(spec.name for spec in shard.inputs)
        self._carries = frozenset(shard.carries)
        # As a rule what a stage sends is what its graph makes: no map is built anew then.
        self._plain = (
            not shard.carries
            and self._sends == tuple(spec.name for spec in shard.outputs)
            and self._inputs == tuple(spec.name for spec in shard.receives)
        )

    def check(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Raise InputError unless these are exactly the tensors that the stage receives."""
        check_feeds(self.shard.receives, tensors)

    def run(
        self, tensors: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """From all received tensors to exactly those it sends; carried ones are not copied.

        Raises InputError, RunError, RunTerminated (`cancel` was used).
        """
        self.check(tensors)
        return self._compute(tensors, cancel)

    def run_checked(
        self, tensors: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """`run` for tensors that `check` has passed. Raises RunError, RunTerminated."""
        return self._compute(tensors, cancel)

    def run_batch(
        self, requests: Sequence[Mapping[str, np.ndarray]], cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Several requests in as few runs as possible; one result each, in the same order.

        Requests are concatenated along axis 0 where the model is batchable and their other
        dimensions agree. Results are views of one array. All requests are checked before any run:
        one InputError refuses all, so `check` each of them where they come from different callers.
        """
        for tensors in requests:
            self.check(tensors)
        if not self.batchable or len(requests) < 2:
            return [self._compute(tensors, cancel) for tensors in requests]
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, tensors in enumerate(requests):
            shapes = tuple(tensors[name].shape[1:] for name in self._inputs)
            groups.setdefault(shapes, []).append(index)
        results: list[dict[str, np.ndarray]] = [{} for _ in requests]
        for members in groups.values():
            for index, result in zip(
                members, self._together([requests[i] for i in members], cancel), strict=True
            ):
                results[index] = result
        return results

    def close(self) -> None:
        """Give the memory back. Later runs raise RunError."""
        if self.runtime is not None:
            self.runtime.close()

    def _together(
        self, requests: Sequence[Mapping[str, np.ndarray]], cancel: CancelToken | None
    ) -> list[dict[str, np.ndarray]]:
        if len(requests) == 1 or self.runtime is None or not self._inputs:
            return [self._compute(tensors, cancel) for tensors in requests]
        rows = [tensors[self._inputs[0]].shape[0] for tensors in requests]
        feeds = {name: np.concatenate([t[name] for t in requests]) for name in self._inputs}
        made = self.runtime.run(feeds, cancel)
        ends = np.cumsum(rows).tolist()
        results = []
        for tensors, end, count in zip(requests, ends, rows, strict=True):
            results.append(
                {
                    name: tensors[name] if name in self._carries else made[name][end - count : end]
                    for name in self._sends
                }
            )
        return results

    def _compute(
        self,
        tensors: Mapping[str, np.ndarray],
        cancel: CancelToken | None,
    ) -> dict[str, np.ndarray]:
        if self._plain and self.runtime is not None:
            return self.runtime.run_checked(tensors, cancel)
        made: Mapping[str, np.ndarray] = {}
        if self.runtime is not None:
            made = self.runtime.run_checked({name: tensors[name] for name in self._inputs}, cancel)
        return {
            name: tensors[name] if name in self._carries else made[name] for name in self._sends
        }


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

    `fetch(file name)` returns an artifact's bytes; nothing is parsed before its hash is checked.
    Raises ManifestError (no such stage), ArtifactError (missing or changed), ModelError (the
    runtime refuses it, or computes wrong values).
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
        runtime.self_test(tolerance=_tolerance(manifest.extra))
    compute_ms = runtime.warm()
    trim_memory()
    return StageRuntime(shard, runtime, batchable=manifest.batchable, compute_ms=compute_ms)


def load_lighter(
    manifest: Manifest, fetch: Callable[[str], bytes], *, threads: int = 1
) -> OrtRuntime | None:
    """The lighter model, verified, self-tested and warm; None when the version has none.

    Raises ArtifactError and ModelError as `load_stage` does.
    """
    lighter = manifest.lighter
    if lighter is None:
        return None
    data = _fetch(fetch, lighter.file, lighter.sha256)
    runtime = OrtRuntime(data, threads=threads, examples=_examples(manifest.extra))
    del data
    # A lighter model is often a quantized one, whose roundings flip.
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
    """Shapes for dynamic tensors that the splitter saw the model run with; hints, never trusted."""
    raw = extra.get("examples")
    if not isinstance(raw, Mapping):
        return {}
    return {
        str(name): tuple(shape)
        for name, shape in raw.items()
        if isinstance(shape, list) and all(isinstance(d, int) and d >= 0 for d in shape)
    }


def _tolerance(extra: Mapping[str, Any]) -> float:
    value = extra.get("tolerance", TOLERANCE)
    # A manifest must not be able to switch the self-test off.
    return min(float(value), 0.1) if isinstance(value, (int, float)) else TOLERANCE
