"""ONNX Runtime, and everything that is peculiar to it, on the side that runs shards."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from shards.errors import ModelError, RunError, RunTerminated
from shards.runtimes.runtime import CancelToken, check_feeds
from shards.runtimes.synthetic import TOLERANCE, random_feeds, worst_deviation
from shards.specs import ORT_TYPES, TensorSpec

log = logging.getLogger(__name__)

Level = Literal["none", "basic", "extended", "all"]
_CPU = ("CPUExecutionProvider",)
# A takeover must not wait for more: long runs vary little anyway.
_WARM_S = 0.5
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def make_session(
    model: bytes, *, level: Level = "all", threads: int = 1, providers: Sequence[str] = _CPU
) -> Any:
    """An `onnxruntime.InferenceSession` as this project wants one. Raises ModelError."""
    import onnxruntime as ort

    absent = set(providers) - set(ort.get_available_providers())
    if absent:
        raise ModelError(
            f"this onnxruntime has no {', '.join(sorted(absent))}; it offers "
            f"{', '.join(ort.get_available_providers())}: install another build or name another"
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[level])
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Nodes share cores: spinning on contended cores cost twice the time and the energy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(model, options, providers=list(providers))
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"ONNX Runtime refuses the model: {error}") from error
    # The wrapper keeps the whole model's bytes for a fallback to other providers, which would hide
    # a broken accelerator. The session has copied the weights: 102 MB back for a ResNet-50.
    session.disable_fallback()
    if hasattr(session, "_model_bytes"):
        session._model_bytes = None
    return session


def _inner(session: Any) -> Any:
    """What the wrapper's `run` calls when it has checked what `check_feeds` has: 19 of 84 us that a
    run of nothing takes behind a convolution. Another version may have no such thing."""
    return getattr(session, "_sess", session)


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc).

    Loading parses and copies the weights. Measured on a ResNet-50 of 102 MB: 372 MB resident after
    loading, 213 after this, 111 with the model's bytes released too. Switching the allocator's
    arena off changed neither memory (252 against 236 after runs) nor time.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class OrtRuntime:
    """A model in one ONNX Runtime session. Building takes 50-150 ms for a ResNet-50: use a thread.

    `inputs` and `outputs` default to what the session says, where every dynamic axis is -1. Raises
    ModelError when the runtime refuses the model, or the specifications do not name its tensors.
    `examples` gives shapes to dynamic inputs, by name, for the self-test and warming.
    """

    def __init__(
        self,
        model: bytes,
        *,
        inputs: Sequence[TensorSpec] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
        threads: int = 1,
        providers: Sequence[str] = _CPU,
        level: Level = "all",
        examples: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.level: Level = level
        self._model: bytes | None = model
        self._threads = threads
        self._providers = tuple(providers)
        self._session = self._build()
        self.inputs = _specs(self._session.get_inputs(), inputs)
        self.outputs = _specs(self._session.get_outputs(), outputs)
        self._names = [spec.name for spec in self.outputs]
        self._examples = examples
        from onnxruntime import RunOptions

        self._run_options = RunOptions
        self._spare: list[Any] = []  # run options that no run uses

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, as fresh arrays. Raises InputError, RunError, RunTerminated.

        Feeds may be read-only views of a received buffer; they are not copied unless misaligned.
        """
        # Plain `run` is also the fastest way for one-off arrays. Measured against binding per call
        # (v1.31, one thread): 4 us against 7 on 64 floats, 19 against 25 on 131 thousand, 0.75 ms
        # against 0.78 on 4 million, bound to a new numpy array; `copy_outputs_to_cpu` doubles it.
        check_feeds(self.inputs, feeds)
        return self.run_checked(feeds, cancel)

    def run_checked(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """The same for feeds that were checked already (a check takes 1.2 us)."""
        for array in feeds.values():
            if not array.flags.aligned:
                # x86 forgives this; C++ and some Arm cores do not.
                feeds = {name: np.require(a, requirements=["A", "C"]) for name, a in feeds.items()}
                break
        return self._run(feeds, cancel)

    def _run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None
    ) -> dict[str, np.ndarray]:
        session = self._session
        if session is None:
            raise RunError("the runtime is closed: load the shard again")
        if cancel is None:
            options = None
        else:
            try:
                options = self._spare.pop()
            except IndexError:
                options = self._run_options()
            cancel.begin(partial(setattr, options, "terminate", True))
        try:
            values = _inner(session).run(self._names, feeds, options)
        except Exception as error:  # pybind raises a dozen unrelated types here
            if cancel is not None and cancel.cancelled:
                raise RunTerminated("the run was cancelled or ran out of its budget") from error
            raise RunError(f"ONNX Runtime failed: {error}") from error
        finally:
            # The terminate flag sticks: such options are not used again.
            if cancel is not None and cancel.end():
                self._spare.append(options)
        outputs: dict[str, np.ndarray] = dict(zip(self._names, values, strict=True))
        return outputs

    def self_test(self, *, tolerance: float = TOLERANCE, seed: int = 0) -> float:
        """Compare with the unoptimised model on seeded input; the relative deviation.

        Optimisation can break a valid graph. Beyond `tolerance` (see `synthetic`) this falls back
        to BASIC with a warning, and raises ModelError when even that differs. The model's bytes are
        released afterwards: call it once, before `warm`. A model that cannot run on synthetic
        input, or draws random numbers, cannot be compared: 0.0 then, and a warning says so.
        """
        model = self._model
        if model is None:
            raise RunError("test before warming, once, and not after closing")
        feeds = random_feeds(self.inputs, self._examples, seed=seed)
        reference = make_session(model, level="none", threads=self._threads)
        try:
            expected = dict(zip(self._names, reference.run(self._names, feeds), strict=True))
            again = dict(zip(self._names, reference.run(self._names, feeds), strict=True))
        except Exception as error:  # pybind raises a dozen unrelated types here
            log.warning("no self-test: the model does not run on synthetic input (%s)", error)
            self._model = None
            return 0.0
        finally:
            del reference
        apart = 0.0
        if worst_deviation(expected, again) == 0.0:
            apart = self._settle(expected, feeds, tolerance)
        else:
            log.warning("no self-test: the model gives another result each time")
        self._model = None
        return apart

    def _settle(
        self, expected: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray], tolerance: float
    ) -> float:
        """Keep the level if it computes `expected`, else go down to one that does."""
        apart = self._apart(expected, feeds)
        if apart > tolerance and self.level in ("all", "extended"):
            log.warning(
                "optimisation level %r is off by %.3g, more than %.3g: falling back to 'basic'",
                self.level,
                apart,
                tolerance,
            )
            self.level = "basic"
            self._session = self._build()
            apart = self._apart(expected, feeds)
        if apart > tolerance:
            raise ModelError(
                f"the optimised model is off by {apart:.3g}, more than {tolerance:.3g}: "
                "do not serve it; try another version of onnxruntime"
            )
        return apart

    def _apart(self, expected: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> float:
        try:
            return worst_deviation(expected, self._run(feeds, None))
        except RunError as error:
            log.warning("the optimised model fails where the plain one runs: %s", error)
            return float("inf")

    def warm(self, runs: int = 5) -> float:
        """Run on synthetic inputs until nothing is first-time any more; the median in ms.

        0.0 when the model does not run on synthetic input (a warning says so). Releases the
        model's bytes: the session has its own copy of the weights.
        """
        self._model = None
        feeds = random_feeds(self.inputs, self._examples)
        times: list[float] = []
        try:
            self._run(feeds, None)
            until = time.perf_counter() + _WARM_S
            while not times or (len(times) < runs and time.perf_counter() < until):
                begin = time.perf_counter()
                self._run(feeds, None)
                times.append((time.perf_counter() - begin) * 1e3)
        except RunError as error:
            if self._session is None:
                raise
            log.warning("not warmed: %s", error)
            return 0.0
        return statistics.median(times)

    def close(self) -> None:
        """Give the memory back; runs under way end on the old session. Idempotent."""
        self._session = self._model = None

    def _build(self) -> Any:
        if self._model is None:
            raise RunError("the runtime is closed: load the shard again")
        try:
            return make_session(
                self._model, level=self.level, threads=self._threads, providers=self._providers
            )
        except ModelError:
            if self.level in ("none", "basic"):
                raise
            # A fusion can fail on a graph that is valid without it.
            session = make_session(
                self._model, level="basic", threads=self._threads, providers=self._providers
            )
            log.warning("optimisation level %r fails on this model: using 'basic'", self.level)
            self.level = "basic"
            return session


def spec_of_arg(arg: Any) -> TensorSpec:
    """The specification of a session's input or output. Raises ModelError for other types.

    ONNX Runtime reports an unknown rank like a scalar's: pass specifications where that matters.
    """
    datatype = ORT_TYPES.get(arg.type)
    if datatype is None:
        raise ModelError(f"{arg.name!r} is a {arg.type}, which cannot cross the mesh")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in arg.shape)
    return TensorSpec(arg.name, datatype, shape)


def _specs(args: Sequence[Any], given: Sequence[TensorSpec] | None) -> tuple[TensorSpec, ...]:
    if given is None:
        return tuple(spec_of_arg(arg) for arg in args)
    if {spec.name for spec in given} != {arg.name for arg in args}:
        raise ModelError(
            f"the model has {', '.join(arg.name for arg in args) or 'nothing'} where the manifest "
            f"names {', '.join(spec.name for spec in given) or 'nothing'}"
        )
    return tuple(given)
