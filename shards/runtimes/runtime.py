"""The seam between a stage and the library that computes it. Needs numpy only.

A stage knows a `Runtime` and a `CancelToken`, and no library. To add a runtime:

1. Write `shards/runtimes/<library>.py` with a class that has the members of `Runtime`. Import the
   library inside the constructor: a node that does not use the runtime must not load the library.
   Map the library's errors in this one module: ModelError while loading, RunError while running.
2. Choose the class in `shards.runtimes.load`, the one place that names runtimes.
3. Add it to `RUNTIMES` in `tests/shards/test_runtime_contract.py`: the suite holds every promise
   of `Runtime` against it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from shards.errors import RunTerminated
from shards.specs import TensorSpec


class CancelToken:
    """Stops the run that it was given to, from any thread. Each run takes a token of its own.

    A cancelled token stays cancelled: a later run with it does not start.
    """

    __slots__ = ("_cancelled", "_lock", "_stop")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._stop: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Stop the current run, if there is one, and refuse later ones. Never waits for a run."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def begin(self, stop: Callable[[], None]) -> None:
        """A runtime begins a run: until `end`, `cancel` calls `stop`.

        Raises RunTerminated when the token is cancelled already.
        """
        with self._lock:
            if self._cancelled:
                raise RunTerminated("the request was cancelled before this run began")
            self._stop = stop

    def end(self) -> bool:
        """A runtime ends a run: `stop` is not called any more.

        Returns whether `stop` was never called, so that the object that it stops can be used again.
        """
        with self._lock:
            self._stop = None
            return not self._cancelled


class Runtime(Protocol):
    """One model, loaded and ready to run. Every runtime passes one contract suite.

    The constructor takes the verified bytes of an ONNX model, loads it, and raises ModelError when
    the library refuses the model. It blocks, so it is called in a thread. `inputs` and `outputs`
    are the model's tensors, in the model's order. After the constructor, `load_stage` calls
    `self_test` once, then `warm` once, and `run` from then on.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs by name, in the order of `outputs`, as arrays that the caller owns.

        The caller has checked that the feeds fit `inputs` (`StageRuntime` does, with
        `check_feeds`). A feed may be a read-only and misaligned view of a received buffer. Several
        threads may run at once. A run with a `cancel` token calls its `begin` first and its `end`
        last. Raises RunError when the library fails or the runtime is closed, and RunTerminated
        when `cancel` stopped the run.
        """
        ...

    def self_test(self, *, tolerance: float) -> float:
        """Compare the optimised model with the plain one on seeded input.

        Returns the deviation (see `shards.runtimes.synthetic.deviation`), 0.0 where the two cannot
        be compared. Raises ModelError when they are further apart than `tolerance`.
        """
        ...

    def warm(self) -> float:
        """Run on synthetic input until nothing happens for the first time any more.

        Returns the median time of a run in milliseconds, 0.0 when the model does not run on
        synthetic input. Gives back the memory that only loading needs.
        """
        ...

    def close(self) -> None:
        """Give the memory back. Runs under way end as usual, later ones raise RunError.

        May be called twice.
        """
        ...


def maker_of(runtime: object) -> Callable[..., Any] | None:
    """A constructor of ONNX Runtime sessions of the same model and settings, for weights that
    change; None for a runtime that has no such form."""
    return getattr(runtime, "maker", None)
