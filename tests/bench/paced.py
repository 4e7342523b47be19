"""The open loop of the benchmarks: requests are due at a steady pace, however the mesh does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator


async def paced(rate: float, count: float = float("inf")) -> AsyncIterator[tuple[int, float]]:
    """Numbers from 0, each when its moment has come, and that moment (`time.monotonic()`).

    rate: a second. count: how many. A consumer that was busy at a moment gets its number late, and
    the next ones on time: it does not wait for answers, but starts a task for each request.
    """
    began = time.monotonic()
    number = 0
    while number < count:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield number, due
        number += 1
