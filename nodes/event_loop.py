"""The event loop of a program, and the signals that end it."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SUPERVISOR = "SWARM_PARENT_PID"  # in the environment of a node: its supervisor's process
STOP_LIMIT = 12.0  # seconds; a drain takes eight at the most
# Seconds from the first signal in which others are the same wish: a service manager and a terminal
# signal a program and its whole group, so that one program is told twice.
SAME_WISH = 0.5
ENDING = (signal.SIGTERM, signal.SIGINT)

_first: float | None = None  # when the first signal came that ends this process


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where there is one (measured: a hop is a third cheaper on it)."""
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    try:
        return run(main)
    finally:
        if _first is not None:  # the loop has given the signals back, and the process ends
            for number in ENDING:
                signal.signal(number, _after_the_loop)


def stop_on_signals(limit: float = 0.0) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; a signal that comes half a second later, or later
    still, ends the process at once.

    limit: seconds from the first signal after which the process prints where each thread is and
    exits with 1, even if it still waits; 0: never.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        global _first
        if _is_impatient():
            raise SystemExit(130)
        if stop.is_set():
            return
        _first = time.monotonic()
        stop.set()
        if limit:
            faulthandler.dump_traceback_later(limit, exit=True)

    for number in ENDING:
        loop.add_signal_handler(number, on_signal)
    return stop


def _is_impatient() -> bool:
    return _first is not None and time.monotonic() - _first > SAME_WISH


def _after_the_loop(_number: int, _frame: object) -> None:
    if _is_impatient():
        os._exit(130)


def end_with_supervisor() -> None:
    """Let the kernel end this process by SIGKILL when its supervisor ends; a node that hangs would
    outlive any other signal. A node without a supervisor is left alone."""
    parent = os.environ.pop(SUPERVISOR, "")
    if parent and sys.platform == "linux":
        die_with_parent(signal.SIGKILL)
        if os.getppid() != int(parent):
            raise SystemExit(0)  # the supervisor has ended already


def die_with_parent(sig: int = signal.SIGTERM) -> None:
    """Ask Linux to end this child when its parent dies (PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, int(sig))
    if os.getppid() == 1:
        os._exit(0)
