"""Starting beside nodes that serve: in a thread of low priority, so that they keep their pace.

Importing and loading take half a second of a core, and a fleet's devices have few. Priorities
are a thread's own on Linux, and one that was lowered cannot be raised again without rights: so
it is a thread that ends, and not this process, which gets a low one. With the cores idle it
takes no longer.
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

NICE = 10  # a ninth of the share of a normal thread on a core that both want

T = TypeVar("T")


def _start(work: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()

    def run() -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="gently", daemon=True).start()
    return outcome


def gently(work: Callable[[], T]) -> T:
    """What `work()` returns or raises, computed while the calling thread waits."""
    return _start(work).result()


async def gently_off_loop(work: Callable[[], T]) -> T:
    """The same without blocking the event loop."""
    return await asyncio.wrap_future(_start(work))
