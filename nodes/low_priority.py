"""Work in a thread of low priority, so that nodes beside this one keep their pace.

A start imports and loads for half a second of a core, and a device of a fleet has few cores.
On Linux a priority belongs to a thread, and a thread that lowered its own cannot raise it again
without rights. So the work gets a thread that ends with it, and the process keeps its priority.
On an idle core the work takes no longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# In the environment of a node: nobody else does its work, so it starts at normal priority.
MISSED = "SWARM_MISSED"
NICE = 10  # a ninth of the share of a normal thread on a core that both want

T = TypeVar("T")


def _start(work: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="low priority", daemon=True).start()
    return outcome


def wait_for_low_priority_thread(work: Callable[[], T]) -> T:
    """Return `work()` or raise its error, while the calling thread waits."""
    return _start(work).result()


async def in_low_priority_thread(work: Callable[[], T]) -> T:
    """Return `work()` or raise its error, while the event loop goes on."""
    return await asyncio.wrap_future(_start(work))
