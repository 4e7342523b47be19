"""Waits of the tests: for an event that comes, with an end that no busy machine reaches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

GENEROUS = 30.0  # seconds; how soon an event comes is no promise, so no test is stricter
LOOK_EVERY = 0.005  # seconds


async def eventually(
    promise: Callable[[], Any], what: str = "the promise", within: float = GENEROUS
) -> Any:
    """Wait until `promise()` holds, which may have to be awaited, and return what it said; fails
    the test after `within` seconds of the loop's time.

    The loop's time is simulated where the test's is.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        holds = promise()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return holds
        assert loop.time() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(LOOK_EVERY)


def eventually_now(
    promise: Callable[[], Any],
    what: str = "the promise",
    within: float = GENEROUS,
    every: float = LOOK_EVERY,
) -> None:
    """`eventually`, for tests without an event loop. every: seconds between looks that cost
    much."""
    deadline = time.monotonic() + within
    while not promise():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(every)
