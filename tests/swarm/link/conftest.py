"""The link is tested on both event loops: they end connections differently."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from support.simulated_time import Loops, loops_of


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    return loops_of(item, {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop})
