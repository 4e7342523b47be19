"""Fixtures of the tests against a real nats-server; the mesh's own event loop, uvloop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop
from real_server import Links
from shared_server import SharedServer
from support.simulated_time import Loops, loops_of

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    """uvloop, as the programs do; the link's tests run on asyncio's own loop as well."""
    return loops_of(item, {"uvloop": uvloop.new_event_loop})


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    """One for all tests of this worker that do not kill or configure it."""
    made = SharedServer()
    made.start_now()
    yield made
    made.stop_now()


@pytest.fixture(autouse=True)
def used() -> Iterator[list[SharedServer]]:
    """Set up before all that connects, and ended behind it: what a test left on the shared server
    is found here."""
    servers: list[SharedServer] = []
    yield servers
    for each in servers:
        each.tidy()


@pytest.fixture
def server(
    request: pytest.FixtureRequest, used: list[SharedServer]
) -> SharedServer | EmbeddedServer:
    """The worker's own, without streams; for a test that takes `own_server`, that one."""
    if "own_server" in request.fixturenames:
        return request.getfixturevalue("own_server")
    shared: SharedServer = request.getfixturevalue("shared_server")
    used.append(shared)
    return shared


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


@pytest.fixture
async def link(server: EmbeddedServer, links: Links) -> Link:
    return await links.connect(server.url)
