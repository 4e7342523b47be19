from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from nats.aio.client import Client
from real_server import eventually

from swarm.link import LinkOptions
from swarm.periodic import BEAT
from swarm.services import control
from swarm.services.control import Control
from swarm.services.embedded import EmbeddedServer


async def _closed_below(client: Client) -> None:
    """As uvloop has it when the connection ended under a flush."""
    raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")


@asynccontextmanager
async def kept(
    server: EmbeddedServer, on_client: Callable[[Client], Awaitable[None]]
) -> AsyncIterator[tuple[Control, asyncio.Task[None]]]:
    """A control connection that runs, and its task."""
    control = Control(LinkOptions(servers=(server.url,)), "test", on_client)
    running = asyncio.create_task(control.run())
    try:
        yield control, running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_client_that_cannot_even_be_closed_is_replaced(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "WATCH_EVERY", BEAT)
    clients: list[Client] = []

    async def on_client(client: Client) -> None:
        clients.append(client)

    async with kept(server, on_client) as (connection, running):
        await eventually(lambda: len(clients) == 1)
        really_close = clients[0].close
        monkeypatch.setattr(clients[0], "close", lambda: _closed_below(clients[0]))
        reading = clients[0]._reading_task  # noqa: SLF001  # nats-py says nowhere else that its read loop runs
        assert reading is not None
        reading.cancel()
        await eventually(lambda: len(clients) == 2)
        assert not running.done()
        assert connection.rebuilt == 1
        assert clients[1].is_connected
        await really_close()
    assert clients[1].is_closed


async def test_one_that_cannot_be_set_up_is_tried_anew(server: EmbeddedServer) -> None:
    tries = 0

    async def on_client(client: Client) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await _closed_below(client)

    async with kept(server, on_client) as (_, running):
        await eventually(lambda: tries == 2)
        assert not running.done()
