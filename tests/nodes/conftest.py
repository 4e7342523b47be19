"""The tests of the programs run on asyncio's own loop, or in simulated time. They share one server,
which each of them leaves empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from support.simulated_time import Loops, loops_of
from support.waiting import GENEROUS

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, LinkOptions, jetstream


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    return loops_of(item, {"asyncio": asyncio.new_event_loop})


@pytest.fixture(scope="session")
def one_server() -> Iterator[EmbeddedServer]:
    """It has no part in any event loop."""
    server, loop = EmbeddedServer(), asyncio.new_event_loop()
    loop.run_until_complete(server.start(GENEROUS))
    yield server
    loop.run_until_complete(server.stop())
    loop.close()


@pytest.fixture
async def link(one_server: EmbeddedServer) -> AsyncIterator[Link]:
    """A connection to a server without streams."""
    link = Link(LinkOptions(servers=(one_server.url,)))
    running = asyncio.create_task(link.run())
    await link.ready(GENEROUS)
    yield link
    streams = (await jetstream.call(link, "$JS.API.STREAM.NAMES")).get("streams") or []
    for stream in streams:
        await jetstream.call(link, f"$JS.API.STREAM.DELETE.{stream}")
    await link.close()
    await running


@pytest.fixture
def url(link: Link, one_server: EmbeddedServer) -> str:
    """Of a server without streams."""
    return one_server.url
