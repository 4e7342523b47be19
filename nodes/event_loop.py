"""The event loop of a program, and the signals that end it."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SUPERVISOR = "SWARM_PARENT_PID"  # in the environment of a node: its supervisor's process
STOP_LIMIT = 12.0  # seconds; a drain takes eight at the most


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where there is one (measured: a hop is a third cheaper on it)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def stop_on_signals(limit: float = 0.0) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once.

    limit: seconds from the first signal after which the process prints where each thread is and
    exits with 1, even if it still waits; 0: never.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit(130)
        stop.set()
        if limit:
            faulthandler.dump_traceback_later(limit, exit=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


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
