"""Tasks that go on by themselves: a defect that ends one is told at once, whoever owns it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger("swarm")


def told(task: asyncio.Task[Any]) -> None:
    """A callback of a task that is done: logs the error that ended it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended by a defect", task.get_name(), exc_info=error)
