"""A bound for runs that no request's budget bounds: those that prove, time and try a model.

A Loop of a model may turn for ever on some values, and synthetic input may have these. So each such
run is ended after `seconds()`, by one thread for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from shards.errors import RunTooLong

DEFAULT = 60.0  # seconds


class _Limit:
    """The process's bound, and its runs under way with their ends."""

    def __init__(self) -> None:
        self.seconds = DEFAULT
        self._change = threading.Condition()
        self._runs: dict[object, tuple[float, Callable[[], None]]] = {}
        self._wakes_at = 0.0  # 0.0 while there is no thread

    def begin(self, run: object, stop: Callable[[], None]) -> None:
        ends = time.monotonic() + self.seconds
        with self._change:
            self._runs[run] = (ends, stop)
            if not self._wakes_at:
                self._wakes_at = ends
                threading.Thread(target=self._watch, name="run limit", daemon=True).start()
            elif ends < self._wakes_at:  # to wake it costs more than a short run
                self._change.notify()

    def end(self, run: object) -> bool:
        """Whether it was stopped."""
        with self._change:
            return self._runs.pop(run, None) is None

    def _watch(self) -> None:
        with self._change:
            while self._runs:
                now = time.monotonic()
                for run, (ends, stop) in list(self._runs.items()):
                    if ends <= now:
                        del self._runs[run]
                        stop()
                self._wakes_at = min((ends for ends, _ in self._runs.values()), default=inf)
                # Without a run it stays for a while: the next one often begins at once.
                self._change.wait(min(self._wakes_at - now, self.seconds))
            self._wakes_at = 0.0


_LIMIT = _Limit()


def seconds() -> float:
    """After which a run is ended."""
    return _LIMIT.seconds


def use(limit: float) -> None:
    """Bound the runs of this process that begin from now on, in seconds. Raises ValueError."""
    if not 0 < limit < inf:
        raise ValueError(f"a run's limit is a number of seconds above 0: {limit}")
    _LIMIT.seconds = limit


@contextmanager
def limited(stop: Callable[[], None]) -> Iterator[None]:
    """A run, which `stop()` ends from another thread. Raises `RunTooLong` where it was ended."""
    run, limit = object(), _LIMIT.seconds
    _LIMIT.begin(run, stop)
    was_stopped = False
    try:
        yield
    except Exception as error:
        was_stopped = _LIMIT.end(run)
        if was_stopped:
            raise RunTooLong(limit) from error
        raise
    finally:
        if not was_stopped:
            _LIMIT.end(run)
