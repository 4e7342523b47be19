"""Connections that break: servers that die, hang, refuse or talk nonsense."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time

import pytest
from real_server import Inbox, Links, hang, resume
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.addresses import split_url
from swarm.errors import NotConnected
from swarm.link import Link, LinkOptions
from swarm.link.session import open_session

pytestmark = pytest.mark.integration


async def test_a_restarted_server_finds_all_subscriptions_again(
    own_server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(own_server.url)
    plain, grouped, gone = Inbox(), Inbox(), Inbox()
    ups: list[int] = []
    downs: list[int] = []
    link.on_up.append(lambda: ups.append(1))
    link.on_down.append(lambda: downs.append(1))
    link.subscribe("plain", plain)
    link.subscribe("grouped", grouped, queue="g")
    link.unsubscribe(link.subscribe("gone", gone))
    await own_server.kill()
    await eventually(lambda: not link.connected)
    late = Inbox()
    link.subscribe("late", late)  # while there is no connection
    with pytest.raises(NotConnected):
        link.publish("plain", b"")
    await own_server.start()
    await link.ready(GENEROUS)
    for subject in ("plain", "grouped", "gone", "late"):
        link.publish(subject, b"")
    await link.flush()
    assert (len(plain), len(grouped), len(late), len(gone)) == (1, 1, 1, 0)
    link.subscribe("echo", lambda m: link.publish(m.reply, b"here"))
    assert bytes((await link.request("echo")).data) == b"here"
    assert (ups, downs, link.reconnects) == ([1], [1], 1)


async def test_a_request_whose_server_dies_ends_at_once_and_can_be_asked_again(
    own_server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(own_server.url)
    link.subscribe("deaf", lambda m: None)
    await link.flush()
    asked = asyncio.create_task(link.request("deaf", timeout=60.0))
    await link.flush()
    await own_server.kill()
    async with asyncio.timeout(GENEROUS):
        with pytest.raises(NotConnected):
            await asked
    await own_server.start()
    await link.ready(GENEROUS)
    link.subscribe("echo", lambda m: link.publish(m.reply, b"here"))
    assert bytes((await link.request("echo")).data) == b"here"


async def test_publishing_in_any_step_of_a_loss_raises_nothing_but_not_connected(
    own_server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(own_server.url)
    refused = 0
    os.kill(own_server.pid, signal.SIGKILL)
    deadline = time.monotonic() + GENEROUS
    while time.monotonic() < deadline and refused < 5:
        try:
            link.publish("a", b"x")
            link.publish("a", b"x" * 100_000)
        except NotConnected:
            refused += 1
        await asyncio.sleep(0)
    assert refused == 5


async def test_publishing_when_the_transport_is_just_gone_raises_not_connected(
    own_server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(own_server.url)
    outcome: list[BaseException | None] = []
    original = link.connection_lost

    def lost(exc: Exception | None) -> None:
        original(exc)

        def attempt() -> None:
            try:
                link.publish("a", b"x")
                link.publish("a", b"x" * 100_000)
            except Exception as error:
                outcome.append(error)
            else:
                outcome.append(None)

        # First in line of what runs next, before the task that notices the loss.
        asyncio.get_running_loop().call_soon(attempt)

    link.connection_lost = lost  # type: ignore[method-assign]
    await own_server.kill()
    await eventually(lambda: bool(outcome))
    assert outcome[0] is None or isinstance(outcome[0], NotConnected), repr(outcome[0])


async def test_who_waits_for_a_connection_does_not_find_the_one_that_was_just_lost(
    own_server: EmbeddedServer, links: Links
) -> None:
    """A requester that asks again at once would keep the loop from making the next one."""
    link = await links.connect(own_server.url)
    found: list[bool] = []
    original = link.connection_lost

    def lost(exc: Exception | None) -> None:
        # First in line of what runs next, before the task that notices the loss.
        ready = asyncio.get_running_loop().create_task(link.ready())
        asyncio.get_running_loop().call_soon(lambda: found.append(ready.done()))
        waiting.append(ready)
        original(exc)

    waiting: list[asyncio.Task[None]] = []
    link.connection_lost = lost  # type: ignore[method-assign]
    await own_server.kill()
    await eventually(lambda: bool(found))
    assert found == [False]
    await own_server.start()
    await asyncio.wait_for(waiting[0], GENEROUS)
    assert link.connected


async def test_a_flush_under_way_fails_when_the_connection_is_lost(
    own_server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(own_server.url)
    await hang(own_server)
    flushing = asyncio.create_task(link.flush(GENEROUS))
    await asyncio.sleep(0)  # it has begun
    os.kill(own_server.pid, signal.SIGKILL)
    with pytest.raises(NotConnected):
        await flushing


async def test_a_hung_server_is_left_for_one_that_answers(
    own_server: EmbeddedServer, links: Links
) -> None:
    other = await links.server(domain=None)
    link = await links.connect(own_server.url, other.url, connect_timeout=0.3, ping_interval=0.2)
    inbox = Inbox()
    link.subscribe("a", inbox)
    lost: list[str] = []
    link.on_down.append(lambda: lost.append(link.last_error))
    await hang(own_server)
    try:
        # The first server still accepts connections; the second one answers.
        await eventually(lambda: bool(lost) and link.connected)
        link.publish("a", b"")
        await eventually(lambda: len(inbox) == 1)
        assert link.url is not None
        assert link.url.port == other.port
        assert lost == ["the server does not answer pings"]
    finally:
        resume(own_server)


async def test_after_a_refusing_server_the_next_one_is_kept(links: Links) -> None:
    """What the dropped connection still reports must not end the one after it."""
    refusals, release, released = 0, asyncio.Event(), asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refusals
        writer.write(b"INFO {}\r\n")
        if not await reader.readline():
            writer.close()
            return  # a look at who is there
        refusals += 1
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        await writer.drain()
        await release.wait()
        writer.close()
        released.set()

    bad = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = bad.sockets[0].getsockname()[1]
    async with EmbeddedServer() as good:
        link = await links.connect(f"nats://127.0.0.1:{port}", good.url)
        release.set()
        await asyncio.wait_for(released.wait(), GENEROUS)
        await link.flush()
        assert (link.reconnects, refusals) == (0, 1)
        await links.close()
    bad.close()


class OneIsSilent:
    """A loop to whose resolver a host has two addresses; the first one answers nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.tried: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def getaddrinfo(self, host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", 1)), (*kind, ("127.0.0.1", port))]

    async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.tried.append(address[1])
        if address[1] == 1:
            await asyncio.Event().wait()
        await self._loop.sock_connect(sock, address)


async def test_an_address_of_a_host_that_answers_nothing_leaves_time_for_the_others(
    server: EmbeddedServer,
) -> None:
    options, loop = LinkOptions(connect_timeout=0.5), OneIsSilent()
    link = Link(options)
    url = split_url(f"nats://localhost:{server.port}")
    info = await open_session(loop, link, url, options)  # type: ignore[arg-type]
    assert info["server_id"]
    assert loop.tried == [1, server.port]
    assert link.gather.transport is not None
    link.gather.transport.abort()


async def test_a_server_without_room_does_not_keep_a_link_from_the_others(links: Links) -> None:
    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n")
        writer.close()

    busy = await asyncio.start_server(full, "127.0.0.1", 0)
    port = busy.sockets[0].getsockname()[1]
    async with EmbeddedServer(domain=None) as good:
        link = await links.connect(f"nats://127.0.0.1:{port}", good.url)
        assert link.url is not None
        assert link.url.port == good.port
        await links.close()
    busy.close()


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"INFO \xff\xfe\r\n",
        b"INFO 7\r\n",
        b"INFO {}\r\nMSG a b c d e\r\n",
        b"",
    ],
)
async def test_whatever_listens_there_the_link_reports_it_and_keeps_trying(
    links: Links, greeting: bytes
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    strange = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = strange.sockets[0].getsockname()[1]
    link = links.start(f"nats://127.0.0.1:{port}")
    with pytest.raises(NotConnected, match="no NATS server answers"):
        await link.ready(GENEROUS, rounds=1)
    assert links.running(link)
    assert link.last_error
    strange.close()


async def test_a_server_that_hangs_is_told_from_one_that_is_not_there(links: Links) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        link = links.start(f"nats://127.0.0.1:{port}", connect_timeout=0.2)
        with pytest.raises(NotConnected) as hangs:
            await link.ready(GENEROUS, rounds=1)
    assert "it took the connection and did not answer within 0.2 s: it hangs" in str(hangs.value)
    assert "start that server again" in str(hangs.value)
    away = links.start(f"nats://127.0.0.1:{port}", connect_timeout=0.2)
    with pytest.raises(NotConnected, match=r"start one \(`nats-server -js`\)"):
        await away.ready(GENEROUS, rounds=1)


@pytest.mark.parametrize(
    "nonsense",
    [b"MSG a\r\n", b"MSG a 1 -5\r\n", b"INFO [1]\r\n", b"INFO {\r\n", b"\r\n" + b"x" * 70_000],
)
async def test_nonsense_in_mid_stream_costs_one_connection_and_no_more(
    links: Links, nonsense: bytes
) -> None:
    sessions = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sessions
        sessions += 1
        pings = 0
        writer.write(b"INFO %b\r\n" % json.dumps({"max_payload": 1000}).encode())
        while line := await reader.readline():
            if line == b"PING\r\n":
                pings += 1
                writer.write(nonsense if (sessions, pings) == (1, 2) else b"PONG\r\n")
        writer.close()

    strange = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = strange.sockets[0].getsockname()[1]
    link = await links.connect(f"nats://127.0.0.1:{port}")
    with pytest.raises(NotConnected):
        await link.flush()
    await eventually(lambda: sessions == 2 and link.connected)
    assert link.reconnects == 1
    await link.flush()
    assert (sessions, link.connected) == (2, True)
    await link.close()
    strange.close()


async def test_waiting_for_a_server_that_is_not_there_says_what_to_do(links: Links) -> None:
    link = links.start("nats://127.0.0.1:1")
    with pytest.raises(NotConnected, match=r"start one .* or pass --nats URL"):
        await link.ready(GENEROUS, rounds=1)


async def test_closing_while_connecting_ends_the_link(links: Links) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\n")
        await reader.readline()
        asked.set()
        await closed.wait()
        writer.write(b"PONG\r\n")
        await reader.read()
        writer.close()

    slow = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = slow.sockets[0].getsockname()[1]
    link = links.start(f"nats://127.0.0.1:{port}")
    await asyncio.wait_for(asked.wait(), GENEROUS)
    await link.close()
    closed.set()
    await eventually(lambda: not links.running(link))
    assert not link.connected
    slow.close()
