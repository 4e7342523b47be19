"""ONNX Runtime: sessions with this project's settings, and the `Runtime` that runs a shard."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shards.errors import ModelError, RunError, RunTerminated, RunTooLong
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.run_limit import limited
from shards.runtimes.runtime import CancelToken
from shards.runtimes.synthetic import (
    TOLERANCE,
    SyntheticAnswer,
    nudged,
    own_scales,
    random_feeds,
    worst_deviation,
)
from shards.specs import ORT_TYPES, TensorSpec

log = logging.getLogger(__name__)

Level = Literal["none", "basic", "extended", "all"]
Provider = str | tuple[str, dict[str, str]]  # an execution provider, with its options
_CPU = ("CPUExecutionProvider",)
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
# A takeover waits for the warm-up. Long runs vary little, so a few of them are enough.
_MOST_WARM_SECONDS = 0.5
_MOST_WARM_RUNS = 5
# The level to try where one fails on a model, or changes its results.
LOWER: Mapping[Level, tuple[Level, ...]] = {
    "all": ("basic",),
    "extended": ("basic",),
    "basic": (),
    "none": (),
}
_LEVEL_NAMES = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass(frozen=True, slots=True)
class InMemory:
    """A model in memory, and the one file of weights that it names. A session copies both."""

    model: bytes
    weights_name: str
    weights: memoryview


@dataclass(frozen=True, slots=True)
class Beside:
    """A model in memory whose weights lie in files of a folder. A session maps them."""

    model: bytes
    folder: Path


Model = bytes | Path | InMemory | Beside
"""An ONNX model, or its file, or one with the weights beside it."""


def make_session(
    model: Model,
    *,
    level: Level = "all",
    threads: int = 1,
    providers: Sequence[Provider] = _CPU,
    weights: Mapping[str, np.ndarray] | None = None,
    save_to: tuple[Path, str] | None = None,
    shared_workspace: bool = False,
) -> Any:
    """An `onnxruntime.InferenceSession` that computes a run with `threads` threads.

    `weights` are the tensors that the model declares
    external. The session may read them in place: nobody writes to them while it lives, and who made
    it keeps them. `save_to` names a file for the optimised model, and one beside it for the weights
    in the layout that runs use; none of the two may exist. `shared_workspace`: runs take their
    memory from one place with all other such sessions of the process, which is never given back;
    else each session has its own, which goes with it. Raises ModelError when a provider is not
    there, or when ONNX Runtime refuses the model, or cannot write.
    """
    import onnxruntime as ort

    names = [each if isinstance(each, str) else each[0] for each in providers]
    absent = set(names) - set(ort.get_available_providers())
    if absent:
        raise ModelError(
            f"this onnxruntime has no {', '.join(sorted(absent))}; it offers "
            f"{', '.join(ort.get_available_providers())}: install another build or name another"
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVEL_NAMES[level])
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, and not printed too
    # Nodes share cores, and a spinning thread keeps a core from the others (measured: 144 instead
    # of 80 ms, and twice the CPU time).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if weights:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    if save_to is not None:
        file, weights_name = save_to
        options.optimized_model_filepath = str(file)
        for key, value in (
            ("session.optimized_model_external_initializers_file_name", weights_name),
            # A library that does not know this one saves the layout of the file, and each session
            # makes the other one.
            ("session.save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(key, value)
    if shared_workspace:
        _make_shared_workspace()
        options.add_session_config_entry("session.use_env_allocators", "1")
    loadable: str | bytes
    if isinstance(model, InMemory):
        loadable, beside = model.model, np.frombuffer(model.weights, np.uint8)
        if beside.size:
            options.add_external_initializers_from_files_in_memory(
                [model.weights_name], [beside], [beside.size]
            )
    elif isinstance(model, Beside):
        loadable = model.model
        options.add_session_config_entry(WEIGHTS_FOLDER, str(model.folder))
    else:
        loadable = str(model) if isinstance(model, Path) else model
    try:
        session = _limited_session()(loadable, options, providers=list(providers))
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"ONNX Runtime refuses the model: {reason_of(error)}") from error
    # A fallback to another provider would hide a broken accelerator.
    if names[0] not in session.get_providers():
        raise ModelError(
            f"ONNX Runtime has {names[0]}, but it did not start: its libraries or its device are "
            "missing (the log of ONNX Runtime tells which)"
        )
    # For a later fallback the Python wrapper keeps the model's bytes (102 MB of a ResNet-50); the
    # session has its own copy of the weights.
    session.disable_fallback()
    if hasattr(session, "_model_bytes"):
        session._model_bytes = None  # noqa: SLF001  # see the comment above
    return session


@cache
def _limited_session() -> Any:
    """A class of sessions whose runs are bounded where no options say how they are ended."""
    import onnxruntime as ort

    class LimitedSession(ort.InferenceSession):  # type: ignore[misc]
        def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
            """Raises `RunTooLong`, and what the library raises."""
            if run_options is not None:
                return super().run(output_names, input_feed, run_options)
            options = ort.RunOptions()
            with limited(partial(setattr, options, "terminate", True)):
                return super().run(output_names, input_feed, options)

    return LimitedSession


@cache
def _make_shared_workspace() -> None:
    """Once a process: the library refuses a second one."""
    import onnxruntime as ort

    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    unlimited, usual = 0, -1
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(unlimited, usual, usual, usual))


def _without_wrapper(session: Any) -> Any:
    """The compiled session inside the library's Python wrapper, or the wrapper if it has none.

    The wrapper's `run` first checks the names of the feeds, which the stage has checked (measured:
    19 of the 84 us of a run without work, behind a convolution).
    """
    return getattr(session, "_sess", session)


def plain_answer(
    model: Model,
    outputs: Sequence[TensorSpec],
    feeds: Mapping[str, np.ndarray],
    *,
    tolerance: float = TOLERANCE,
    threads: int = 1,
    weights: Mapping[str, np.ndarray] | None = None,
    held: Mapping[str, np.ndarray] | None = None,
) -> SyntheticAnswer | None:
    """The `outputs` of a model that is not optimised, for a self-test that allows `tolerance`.

    `held` are weights among the inputs. None, and a warning why, where the model does not run on
    these feeds, draws random numbers, or hangs on the last bits of its inputs.
    """
    reference = make_session(model, level="none", threads=threads, weights=weights)
    names = [spec.name for spec in outputs]
    try:
        runs = [
            reference.run(names, {**each, **(held or {})}) for each in (feeds, feeds, nudged(feeds))
        ]
    except Exception as error:  # pybind raises a dozen unrelated types here
        log.warning(
            "no self-test: the model does not run on synthetic input (%s)", reason_of(error)
        )
        return None
    expected, again, beside = (dict(zip(names, run, strict=True)) for run in runs)
    if worst_deviation(expected, again) != 0.0:
        log.warning("no self-test: the model gives another result each time")
        return None
    scales = own_scales(outputs, expected, beside, tolerance)
    if scales and all(math.isinf(scale) for scale in scales.values()):
        log.warning("no self-test: the last bits of synthetic input decide what the model answers")
        return None
    return SyntheticAnswer(expected, scales)


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library can do so (glibc).

    Loading parses and copies the weights (measured: a ResNet-50 of 102 MB takes 372 MB after
    loading, 213 after this call, 111 with the model's bytes released too).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class OrtRuntime:
    """A `Runtime`: one model in one ONNX Runtime session.

    `inputs` and `outputs` default to the session's own, where every dynamic axis is -1. `examples`
    gives shapes to dynamic inputs, by name, for the self-test and the warm-up. `level` is the
    optimisation level; a level that fails on this model, or changes its results, is replaced by
    BASIC. `prepared` says that the model was optimised before, at this level (see
    `shards.runtimes.prepared`). `weights` are the tensors that the model declares external, and
    `held` are weights that it takes as inputs, which each run is given. Loading blocks (measured:
    50-150 ms for a ResNet-50, 10 ms where it is prepared), so call the constructor in a thread.
    Raises ModelError when ONNX Runtime refuses the model, or when the specifications name other
    tensors than the model.
    """

    def __init__(
        self,
        model: Model,
        *,
        inputs: Sequence[TensorSpec] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
        threads: int = 1,
        providers: Sequence[Provider] = _CPU,
        level: Level = "all",
        prepared: bool = False,
        examples: Mapping[str, Sequence[int]] | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        held: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.level: Level = level
        self._model: Model | None = model
        self._prepared = prepared
        self._threads = threads
        self._providers = tuple(providers)
        self._weights = weights
        self._held = held
        self._session = self._build()
        asked = [arg for arg in self._session.get_inputs() if arg.name not in (held or ())]
        self.inputs = _specs(asked, inputs)
        self.outputs = _specs(self._session.get_outputs(), outputs)
        self._output_names = [spec.name for spec in self.outputs]
        self._examples = examples
        from onnxruntime import RunOptions

        self._new_options = RunOptions
        self._spare_options: list[Any] = []  # no run uses them at the moment

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs by name, as fresh arrays. The caller has checked that the feeds fit.

        Feeds may be read-only views of a received buffer. Only misaligned feeds are copied. Raises
        RunError and RunTerminated; without `cancel`, RunTooLong too.
        """
        session = self._session
        if session is None:
            raise RunError("the runtime is closed: load the shard again")
        for array in feeds.values():
            if not array.flags.aligned:
                # C++ requires alignment. x86 forgives a misaligned read, some Arm cores do not.
                feeds = {name: np.require(a, requirements=["A", "C"]) for name, a in feeds.items()}
                break
        if self._held:
            feeds = {**feeds, **self._held}
        options = None
        if cancel is not None:
            try:
                options = self._spare_options.pop()
            except IndexError:
                options = self._new_options()
            cancel.begin(partial(setattr, options, "terminate", True))
        try:
            # Plain `run` with one-off arrays is faster than binding inputs and outputs for each
            # call (measured: 4 against 7 us on 64 floats, 19 against 25 us on 131 thousand).
            if options is None:
                values = session.run(self._output_names, feeds)
            else:
                values = _without_wrapper(session).run(self._output_names, feeds, options)
        except RunTooLong:
            raise
        except Exception as error:  # pybind raises a dozen unrelated types here
            if cancel is not None and cancel.cancelled:
                raise RunTerminated("the run was cancelled or ran out of its budget") from error
            raise RunError(f"ONNX Runtime failed: {reason_of(error)}") from error
        finally:
            # The terminate flag cannot be taken back: such options are not used again.
            if cancel is not None and cancel.end():
                self._spare_options.append(options)
        return dict(zip(self._output_names, values, strict=True))

    def self_test(self, *, tolerance: float = TOLERANCE) -> float:
        """Compare the optimised model with the plain one on seeded input.

        Optimisation can break a valid graph. A result further apart than `tolerance` makes the
        runtime fall back to BASIC, with a warning, and raises ModelError when BASIC is as far
        apart. A model that does not run on synthetic input, or draws random numbers, cannot be
        compared: the result is 0.0 then, and a warning says why. Call it once, before `warm`:
        it releases the model's bytes. Returns the relative deviation (see `deviation`).
        """
        model = self._model
        if model is None:
            raise RunError("test before warming, once, and not after closing")
        feeds = self.synthetic()
        expected = plain_answer(
            model,
            self.outputs,
            feeds,
            tolerance=tolerance,
            threads=self._threads,
            weights=self._weights,
            held=self._held,
        )
        apart = 0.0
        if expected is not None:
            apart = self._settle_level(expected, feeds, tolerance)
        self._model = None
        return apart

    def deviation_from(self, expected: SyntheticAnswer) -> float:
        """How far the answer to synthetic input is apart from `expected`; infinite when the run
        fails."""
        return self._apart(expected, self.synthetic())

    def _settle_level(
        self, expected: SyntheticAnswer, feeds: Mapping[str, np.ndarray], tolerance: float
    ) -> float:
        """Keep the optimisation level if it computes `expected`, else go down to BASIC.

        Returns how far the level that is kept is apart from `expected`. Raises ModelError.
        """
        apart = self._apart(expected, feeds)
        if apart > tolerance and LOWER[self.level]:
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

    def _apart(self, expected: SyntheticAnswer, feeds: Mapping[str, np.ndarray]) -> float:
        """The deviation of a run from `expected`; infinite when the run fails."""
        try:
            return expected.apart(self.run(feeds))
        except RunError as error:
            log.warning("the optimised model fails where the plain one runs: %s", error)
            return float("inf")

    def warm(self) -> float:
        """Run on synthetic input until nothing happens for the first time any more.

        Returns the median time of a run in milliseconds, 0.0 when the model does not run on
        synthetic input (a warning says why). Releases the model's bytes: the session has its own
        copy of the weights. Raises RunError when the runtime is closed.
        """
        self._model = None
        feeds = self.synthetic()
        times: list[float] = []
        try:
            self.run(feeds)
            until = time.perf_counter() + _MOST_WARM_SECONDS
            while not times or (len(times) < _MOST_WARM_RUNS and time.perf_counter() < until):
                begin = time.perf_counter()
                self.run(feeds)
                times.append((time.perf_counter() - begin) * 1e3)
        except RunError as error:
            if self._session is None:
                raise
            log.warning("not warmed: %s", error)
            return 0.0
        return statistics.median(times)

    def close(self) -> None:
        """Give the memory back. Runs under way end on the old session. May be called twice."""
        self._session = self._model = self._weights = None

    def release_model(self) -> None:
        """Let the model's bytes go: the session needs them no more. `warm` does so too."""
        self._model = None

    def synthetic(self) -> dict[str, np.ndarray]:
        """Seeded arrays that fit the inputs, equal each time (see `random_feeds`)."""
        return random_feeds(self.inputs, self._examples)

    def maker(self) -> Callable[..., OrtRuntime]:
        """A constructor for other forms of the same model, with this runtime's settings.

        It takes `model`, `weights` and `held`, and knows nothing of this runtime's session.
        """
        return partial(
            OrtRuntime,
            inputs=self.inputs,
            outputs=self.outputs,
            threads=self._threads,
            providers=self._providers,
            level=self.level,
            examples=self._examples,
        )

    def shares_session(self, other: OrtRuntime) -> bool:
        """Whether both run on one session."""
        return self._session is other._session

    def holding(self, held: Mapping[str, np.ndarray]) -> OrtRuntime:
        """A runtime on the same session with other `held` weights; takes microseconds.

        Each of the two is closed by itself.
        """
        other = copy.copy(self)
        other._held = held  # noqa: SLF001  # of its own class, and not yet known to anybody
        return other

    def _build(self) -> Any:
        """A session at the present level, or at BASIC if that level fails on this model."""
        if self._model is None:
            raise RunError("the runtime is closed: load the shard again")
        try:
            return make_session(
                self._model,
                level="none" if self._prepared else self.level,
                # The stages of a fallback seldom run at a time.
                shared_workspace=self._prepared,
                threads=self._threads,
                providers=self._providers,
                weights=self._weights,
            )
        except ModelError:
            if self._prepared or not LOWER[self.level]:
                raise
            # A fusion can fail on a graph that is valid without it.
            session = make_session(
                self._model,
                level="basic",
                threads=self._threads,
                providers=self._providers,
                weights=self._weights,
            )
            log.warning("optimisation level %r fails on this model: using 'basic'", self.level)
            self.level = "basic"
            return session


def _spec_of_arg(arg: Any) -> TensorSpec:
    """The specification of a session's input or output. Raises ModelError for unsupported types.

    ONNX Runtime reports an unknown rank as it reports a scalar's, so the manifest's specifications
    are used where there are any.
    """
    datatype = ORT_TYPES.get(arg.type)
    if datatype is None:
        raise ModelError(f"{arg.name!r} is a {arg.type}, which cannot cross the mesh")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in arg.shape)
    return TensorSpec(arg.name, datatype, shape)


def _specs(args: Sequence[Any], given: Sequence[TensorSpec] | None) -> tuple[TensorSpec, ...]:
    """The given specifications, if they name the same tensors as the session, or the session's."""
    if given is None:
        return tuple(_spec_of_arg(arg) for arg in args)
    if {spec.name for spec in given} != {arg.name for arg in args}:
        raise ModelError(
            f"the model has {', '.join(arg.name for arg in args) or 'nothing'} where the manifest "
            f"names {', '.join(spec.name for spec in given) or 'nothing'}"
        )
    return tuple(given)
