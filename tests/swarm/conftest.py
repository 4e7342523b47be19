"""Fixtures of the tests against a real nats-server; the mesh's own event loop, uvloop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from real_server import Links

from swarm.server import EmbeddedServer

try:
    import uvloop
except ImportError:  # not on Windows
    uvloop = None


@pytest.fixture(params=["uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    if request.param == "uvloop" and uvloop is not None:
        return uvloop.EventLoopPolicy()
    return asyncio.DefaultEventLoopPolicy()


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
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
