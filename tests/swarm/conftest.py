"""Fixtures of the tests against a real nats-server; the mesh's own event loop, uvloop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import uvloop
from real_server import Links
from support.simulated_time import Loops, loops_of

from swarm.services.embedded import EmbeddedServer


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    """uvloop, as the programs do; the link's tests run on asyncio's own loop as well."""
    return loops_of(item, {"uvloop": uvloop.new_event_loop})


@pytest.fixture
def server(own_server: EmbeddedServer) -> EmbeddedServer:
    return own_server


@pytest.fixture
async def own_server() -> AsyncIterator[EmbeddedServer]:
    """For a test that kills it, stops it, or reads what it says of all its users."""
    async with EmbeddedServer() as running:
        pid = running.pid
        yield running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.fixture
async def links() -> AsyncIterator[Links]:
    opened = Links()
    yield opened
    await opened.close()
