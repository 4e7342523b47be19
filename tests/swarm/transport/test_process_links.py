"""One connection or two: decided once, by how far a real server is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from real_server import cut
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument
from swarm.link import Link
from swarm.model import ModelInfo, Spec, Stage
from swarm.transport import process_links as links
from swarm.transport import second_connection

FAR_S = 0.015  # of delay, each way

SMALL = ModelInfo("small", "1", (), (), (Stage(1, (), (), 0.01),))
FEATURES = (Spec("x", "FP32", (1, 1 << 14)),)
LARGE = ModelInfo("large", "1", FEATURES, FEATURES, (Stage(1, FEATURES, FEATURES, 0.01),))


class Way:
    """A proxy before a server. delay(read): seconds by which it keeps the bytes of each read, one
    way; read: its number on this way, from 0."""

    def __init__(
        self, server: EmbeddedServer, delay: Callable[[int], float] = lambda read: FAR_S
    ) -> None:
        self._server = server
        self.delay = delay
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self._client, "127.0.0.1", 0)
        try:
            yield f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._server.port)
        for way in ((reader, outer), (inner, writer)):
            self._pumps.add(asyncio.create_task(self._pump(*way)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - time.monotonic())  # as long as the way is
                if not data:
                    return
                writer.write(data)

        read, writing = 0, asyncio.create_task(write())
        try:
            data = b"begin"
            while data:
                data = await reader.read(1 << 16)
                late.put_nowait((time.monotonic() + self.delay(read), data))
                read += 1
            await writing
        except OSError:
            pass  # either side went away
        finally:
            writing.cancel()
            writer.close()


def own_connection(mesh: swarm.Mesh) -> bool:
    """Whether models with large messages have one; those with small ones are on the first."""
    assert mesh.routes_for(SMALL).link is mesh.link
    assert mesh.routes_for(LARGE).link is mesh.bulk
    return mesh.bulk is not mesh.link


async def test_a_near_server_gets_one_connection_and_no_ping_more(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Link] = []
    sync = Link.sync

    def counted(link: Link) -> asyncio.Future[None]:
        asked.append(link)
        return sync(link)

    monkeypatch.setattr(Link, "sync", counted)
    monkeypatch.setattr(second_connection, "NEAR_S", GENEROUS)  # however busy the machine is
    async with swarm.connect(server.url) as mesh:
        assert not own_connection(mesh)
        assert asked == []


@pytest.mark.parametrize(
    ("setting", "connections"), [("auto", 2), ("on", 2), (True, 2), ("off", 1), (False, 1)]
)
async def test_a_far_server_gets_a_second_connection_unless_it_is_switched_off(
    server: EmbeddedServer, setting: str | bool, connections: int
) -> None:
    async with (
        Way(server).listening() as url,
        swarm.connect(url, two_connections=setting) as mesh,
    ):
        assert own_connection(mesh) is (connections == 2)
        assert len(mesh.links) == connections
        assert all(link.connected for link in mesh.links)


async def test_a_near_server_gets_two_connections_where_they_are_switched_on(
    server: EmbeddedServer,
) -> None:
    async with swarm.connect(server.url, two_connections="on") as mesh:
        assert own_connection(mesh)


async def test_a_link_that_becomes_slow_later_keeps_one_connection(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_connection, "NEAR_S", GENEROUS)
    way = Way(server, lambda read: 0.0)
    async with way.listening() as url, swarm.connect(url, ping_interval=0.05) as mesh:
        assert not own_connection(mesh)
        way.delay = lambda read: FAR_S
        await eventually(lambda: mesh.link.send_rate.is_far, "the link is seen as slow")
        assert not own_connection(mesh)


@pytest.mark.parametrize("first", [True, False])
async def test_either_connection_is_renewed_alone(server: EmbeddedServer, first: bool) -> None:
    async with swarm.connect(server.url, two_connections="on") as mesh:
        renewed, stays = mesh.links if first else mesh.links[::-1]
        cut(renewed)
        await eventually(lambda: renewed.reconnects == 1)
        await renewed.ready(5.0)
        await stays.flush()
        assert stays.reconnects == 0
        assert own_connection(mesh)


async def test_a_second_connection_that_is_refused_is_told_once_and_one_is_used_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few refusals are enough: it is not asked until a time is over."""
    monkeypatch.setattr(links, "SECOND_TIMEOUT", 3600.0)
    caplog.set_level(logging.WARNING)
    async with (
        asyncio.timeout(GENEROUS),
        EmbeddedServer(more="max_connections: 1\n") as server,
        swarm.connect(server.url, two_connections="on") as mesh,
    ):
        assert not own_connection(mesh)
        await mesh.link.flush()
        assert mesh.link.reconnects == 0
    [record] = [each for each in caplog.records if each.name.startswith("swarm")]
    assert "maximum connections exceeded" in record.getMessage()


async def test_a_setting_that_is_none_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidArgument, match="auto, on, off"):
        swarm.connect(two_connections="both")
