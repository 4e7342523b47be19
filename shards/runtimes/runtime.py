"""What every runtime offers, and the checks that come before a run. Needs numpy only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from shards.errors import InputError, RunTerminated
from shards.specs import TensorSpec


class CancelToken:
    """Stops the run that it was given to, from any thread. One token per request.

    Once cancelled it stays so: a later run with the same token does not start.
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
        """Stop the current run, if there is one, and refuse later ones. Never blocks on a run."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def begin(self, stop: Callable[[], None]) -> None:
        """Until `end`, `cancel` calls `stop`. Raises RunTerminated when already cancelled."""
        with self._lock:
            if self._cancelled:
                raise RunTerminated("the request was cancelled before this run began")
            self._stop = stop

    def end(self) -> bool:
        """The run is over: `stop` is not called any more. False when it may have been."""
        with self._lock:
            self._stop = None
            return not self._cancelled


class Runtime(Protocol):
    """One loaded model. `run` may be called from several threads at once."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name. Raises InputError, RunError, RunTerminated (cancelled)."""
        ...

    def run_checked(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """The same for feeds that were checked already."""
        ...

    def warm(self) -> float:
        """Run a few times on synthetic inputs; the median in milliseconds."""
        ...

    def close(self) -> None:
        """Give the memory back. Later runs raise RunError."""
        ...


def check_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, np.ndarray]) -> None:
    """Check names, datatypes and shapes; a dimension of -1 takes any size.

    The batch axes of all batch inputs must agree. Raises InputError for the first mismatch.
    """
    rows = -1
    for spec in specs:
        array = feeds.get(spec.name)
        if array is None:
            raise InputError(spec.name, str(spec), "nothing")
        if not isinstance(array, np.ndarray):
            raise InputError(spec.name, str(spec), type(array).__name__)
        shape = array.shape
        if array.dtype != spec.dtype or (shape != spec.shape and not _fits(spec.shape, shape)):
            raise InputError(spec.name, str(spec), _describe(array))
        if spec.batch:
            if rows not in (-1, shape[0]):
                raise InputError(spec.name, f"a batch of {rows}", f"a batch of {shape[0]}")
            rows = shape[0]
    if len(feeds) != len(specs):
        names = [spec.name for spec in specs]
        unknown = next(name for name in feeds if name not in names)
        raise InputError(unknown, f"only {', '.join(names)}", "an unknown tensor")


def _fits(wanted: tuple[int, ...], got: tuple[int, ...]) -> bool:
    return len(wanted) == len(got) and all(
        want in (-1, have) for want, have in zip(wanted, got, strict=True)
    )


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
