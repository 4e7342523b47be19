"""One loaded stage, as a node uses it: checks the tensors that arrive, runs, passes tensors on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shards.errors import InputError, RunError
from shards.runtimes.runtime import CancelToken, Runtime
from shards.schema import Shard
from shards.specs import TensorSpec


class StageRuntime:
    """One stage, ready to serve. `run` may be called from several threads at once.

    `runtime` is None for a stage without layers, which passes all tensors on unchanged. `batchable`
    says that requests may be concatenated along axis 0. `compute_ms` is the median time of a run
    at batch 1, measured when the stage was loaded. `weights_version` is the number of the weights
    that every run computes with, 0 for those of the artifact. Another version is another object.
    """

    def __init__(
        self,
        shard: Shard,
        runtime: Runtime | None,
        *,
        batchable: bool,
        compute_ms: float = 0.0,
        weights_version: int = 0,
    ) -> None:
        self.shard = shard
        self.weights_version = weights_version
        self.runtime = runtime
        self.batchable = batchable
        self.compute_ms = compute_ms
        self._sends = tuple(spec.name for spec in shard.sends)
        self._inputs = tuple(spec.name for spec in shard.inputs)
        self._carries = frozenset(shard.carries)
        # Most stages feed all that they receive and send all that they make: the runtime's own
        # mappings do then, and none is built anew for each run.
        self._carries_nothing = (
            not shard.carries
            and self._sends == tuple(spec.name for spec in shard.outputs)
            and self._inputs == tuple(spec.name for spec in shard.receives)
        )

    @property
    def device(self) -> str:
        """Where the stage computes at the moment, as `shards.runtimes.device` names it."""
        return getattr(self.runtime, "device", "cpu")

    @property
    def wanted_device(self) -> str:
        """Where it was to compute by now: another device than `device` where that one failed."""
        return getattr(self.runtime, "wanted", self.device)

    def numbered(self, weights_version: int) -> StageRuntime:
        """This stage on the same session, as another weight version."""
        return StageRuntime(
            self.shard,
            self.runtime,
            batchable=self.batchable,
            compute_ms=self.compute_ms,
            weights_version=weights_version,
        )

    def check(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Raise InputError unless these are exactly the tensors that the stage receives."""
        check_feeds(self.shard.receives, tensors)

    def run(
        self, tensors: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """From all tensors that the stage receives to all that it sends.

        Carried tensors are passed on without a copy. Raises InputError, RunError, and RunTerminated
        when `cancel` stopped the run.
        """
        self.check(tensors)
        return self._compute(tensors, cancel)

    def run_batch(
        self, requests: Sequence[Mapping[str, np.ndarray]], cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Several requests in as few runs as possible; one result each, in the same order.

        Requests are concatenated along axis 0 where the model is batchable and their other
        dimensions agree; their results are views of one array. All requests are checked before
        any run, and one InputError refuses all: `check` each one that comes from another caller.
        Raises as `run` does.
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
            together = self._compute_together([requests[index] for index in members], cancel)
            for index, result in zip(members, together, strict=True):
                results[index] = result
        return results

    def close(self) -> None:
        """Give the memory back. Later runs raise RunError."""
        if self.runtime is not None:
            self.runtime.close()

    def _compute_together(
        self, requests: Sequence[Mapping[str, np.ndarray]], cancel: CancelToken | None
    ) -> list[dict[str, np.ndarray]]:
        """One run for checked requests whose tensors differ along axis 0 only."""
        if len(requests) == 1 or self.runtime is None or not self._inputs:
            return [self._compute(tensors, cancel) for tensors in requests]
        rows = [tensors[self._inputs[0]].shape[0] for tensors in requests]
        feeds = {name: np.concatenate([t[name] for t in requests]) for name in self._inputs}
        made = self.runtime.run(feeds, cancel)
        ends = np.cumsum(rows).tolist()
        for name, array in made.items():
            if array.shape[:1] != (ends[-1],):
                # Whose row is whose is not known: where values decide how many there are.
                raise RunError(
                    f"output {name!r} of a batch of {ends[-1]} rows has the shape "
                    f"{list(array.shape)}: this stage computes one request at a time"
                )
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
        self, tensors: Mapping[str, np.ndarray], cancel: CancelToken | None
    ) -> dict[str, np.ndarray]:
        """One run for one checked request."""
        if self._carries_nothing and self.runtime is not None:
            return self.runtime.run(tensors, cancel)
        made: Mapping[str, np.ndarray] = {}
        if self.runtime is not None:
            made = self.runtime.run({name: tensors[name] for name in self._inputs}, cancel)
        return {
            name: tensors[name] if name in self._carries else made[name] for name in self._sends
        }


def check_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, np.ndarray]) -> None:
    """Check names, datatypes and shapes; a dimension of -1 takes any size, `any_rank` any shape.

    All inputs with a batch axis must have equally many rows. Raises InputError for the first
    tensor that does not fit.
    """
    rows = -1
    for spec in specs:
        array = feeds.get(spec.name)
        if array is None:
            raise InputError(spec.name, str(spec), "nothing")
        if not isinstance(array, np.ndarray):
            raise InputError(spec.name, str(spec), type(array).__name__)
        shape = array.shape
        if array.dtype != spec.dtype or (shape != spec.shape and not _fits(spec, shape)):
            raise InputError(spec.name, str(spec), _describe(array))
        if spec.batch:
            if not shape:  # where any rank fits
                raise InputError(spec.name, "an axis 0 with the rows of a batch", _describe(array))
            if rows not in (-1, shape[0]):
                raise InputError(spec.name, f"a batch of {rows}", f"a batch of {shape[0]}")
            rows = shape[0]
    if len(feeds) != len(specs):
        names = [spec.name for spec in specs]
        unknown = next(name for name in feeds if name not in names)
        raise InputError(unknown, f"only {', '.join(names)}", "an unknown tensor")


def _fits(spec: TensorSpec, got: tuple[int, ...]) -> bool:
    return spec.any_rank or (
        len(spec.shape) == len(got)
        and all(want in (-1, have) for want, have in zip(spec.shape, got, strict=True))
    )


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
