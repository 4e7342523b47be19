"""Simulated time: an event loop whose clock jumps to the next timer when nothing else is to do.

A test with the mark `simulated` runs on such a loop. A wait of an hour costs it nothing, and takes
exactly an hour by `loop.time()`, however busy the machine is. What is tested must take its clock
from its constructor: give it `loop.time`. It must not talk to a socket, a process or a thread,
which know nothing of the simulated time: a bound of seconds may end before a thread has begun, on a
busy machine. A test that waits for a thread fails always.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any

import pytest

Loops = dict[str, Callable[[], asyncio.AbstractEventLoop]]


class StuckError(AssertionError):
    """All tasks wait, and there is no timer: in real time, the test would hang for ever."""


class _Jumps(selectors.BaseSelector):
    """Looks at the files without waiting. A wait moves the simulated time on instead."""

    def __init__(self) -> None:
        self._files = selectors.DefaultSelector()
        self.now = 0.0
        self.has_heard_a_thread = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.has_heard_a_thread:
            raise StuckError("a thread's work is awaited, which knows nothing of simulated time")
        ready = self._files.select(0)
        if ready:
            return ready
        if timeout is None:
            raise StuckError("nothing is due: all tasks wait for each other")
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()

    def close(self) -> None:
        self._files.close()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, on simulated time. It begins at 1000 s: a moment of 0 is "never" to some
    callers."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)
        self._clock_resolution = 1e-9

    def call_soon_threadsafe(self, *args: Any, **more: Any) -> asyncio.Handle:
        self._jumps.has_heard_a_thread = True  # also where the thread was done at once
        return super().call_soon_threadsafe(*args, **more)

    def time(self) -> float:
        return 1000.0 + self._jumps.now

    def stop_for(self, seconds: float) -> None:
        """The process stands still for so long, as by SIGSTOP: timers that are due meanwhile run
        when it goes on, before anything is read."""
        self._jumps.now += seconds


def loops_of(item: pytest.Item, usual: Loops) -> Loops:
    """For a room's hook `pytest_asyncio_loop_factories`: the simulated loop for a test with the
    mark `simulated`, and the room's usual loops for the others."""
    if item.get_closest_marker("simulated"):
        return {"simulated": SimulatedLoop}
    return usual
