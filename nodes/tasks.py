"""The end of tasks that a node owns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


async def end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel, again where it was swallowed: in Python 3.11 a `wait_for` that is cancelled just
    when it is done returns as if nothing had happened, and nats-py waits so."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
