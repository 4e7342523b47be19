"""The tests of the programs run on asyncio's own loop, or in simulated time."""

from __future__ import annotations

import asyncio

import pytest
from support.simulated_time import Loops, loops_of


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    return loops_of(item, {"asyncio": asyncio.new_event_loop})
