"""Tasks that run by themselves: a defect that ends one is logged at once, whoever owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

log = logging.getLogger("swarm")


def told(task: asyncio.Task[Any]) -> None:
    """A callback of a task that is done: logs the error that ended it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended by a defect", task.get_name(), exc_info=error)


@asynccontextmanager
async def owned(work: Coroutine[Any, Any, None], name: str = "") -> AsyncIterator[None]:
    """Some work that goes on inside the block, and ends with it."""
    task = asyncio.create_task(work, name=name or None)
    task.add_done_callback(told)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel, again where it was swallowed: in Python 3.11 a `wait_for` that is cancelled just
    when it is done returns as if nothing had happened, and nats-py waits so."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
