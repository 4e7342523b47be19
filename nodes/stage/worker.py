"""The thread that computes: one job at a time, handed over without a pool's queue hops.

`sys.setswitchinterval` matters here: beside a busy event loop a run that releases the GIL
waits up to the interval to get it back (7.7 ms took 12.4 ms at the default 5 ms).
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SWITCH_INTERVAL = 0.0005  # seconds


class Worker:
    """Runs `work()` in its own thread and calls `done(result, error, seconds)` on the loop.

    busy_since: `time.monotonic()` when the present job began, 0.0 when idle: what a
    watchdog looks at.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.queued = 0
        self.busy_since = 0.0
        self.abandoned = False
        self._thread.start()

    def submit(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, Exception | None, float], None],
    ) -> None:
        """Hand over one job. Called on the loop."""
        self.queued += 1
        self._jobs.put((work, done))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._do(*job):
                return
            # While this thread waits, it must not keep the last job's model and tensors alive.
            del job

    def _do(self, work: Any, done: Any) -> bool:
        """One job; False when the loop has closed, and nobody waits for results any more."""
        result, failure = None, None
        started = time.perf_counter()
        self.busy_since = time.monotonic()
        try:
            result = work()
        except Exception as error:
            failure = error
        except BaseException as error:
            # A library in Rust that panics raises no `Exception`: the thread would end by it, and
            # all work that comes would wait for ever.
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        seconds = time.perf_counter() - started
        self.busy_since = 0.0
        try:
            self._loop.call_soon_threadsafe(self._finish, done, result, failure, seconds)
        except RuntimeError:
            return False
        return True

    def _finish(
        self,
        done: Callable[[Any, Exception | None, float], None],
        result: Any,
        failure: Exception | None,
        seconds: float,
    ) -> None:
        self.queued -= 1
        if not self.abandoned:
            done(result, failure, seconds)

    def abandon(self) -> None:
        """Give up on a thread that hangs: what it still returns is thrown away."""
        self.abandoned = True
        self._jobs.put(None)

    def close(self, timeout: float = 1.0) -> None:
        """Let the present job finish, then end."""
        self._jobs.put(None)
        self._thread.join(timeout)
