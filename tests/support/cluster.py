"""The servers of a cluster that scenarios kill, cut off, and send away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nodes.up.embedded_cluster import cluster_lines, elected, free_ports
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import Unavailable
from swarm.link import Link, LinkOptions, jetstream
from swarm.subjects import api

BLOCK = 64 * 1024  # bytes


@dataclass
class RouteProxy:
    """One server's way to another one's route port."""

    here: int
    there: int
    target: int
    silent: bool = False
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):  # by `stop`, which nobody else is told of
            await self._join(reader, writer)
        self._tasks.discard(task)
        writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._heard()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(reader, far_writer))
                    group.create_task(self._carry(far_reader, writer))
            finally:
                far_writer.close()
        except* (OSError, RuntimeError):
            pass  # one end has closed: so does the other one (uvloop raises RuntimeError)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK):
            await self._heard()
            writer.write(block)
            await writer.drain()
        raise ConnectionResetError  # which ends the other direction too

    async def _heard(self) -> None:
        while self.silent:  # noqa: ASYNC110 - twenty looks a second, in a benchmark
            await asyncio.sleep(LOOK_EVERY)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class RouteProxies:
    """All ways between the servers whose route ports are given."""

    def __init__(self, ports: Collection[int]) -> None:
        pairs = [(i, j, port) for i in range(len(ports)) for j, port in enumerate(ports) if i != j]
        self.ways = [RouteProxy(*pair) for pair in pairs]

    async def start(self) -> None:
        for way in self.ways:
            await way.start()

    def routes(self, server: int) -> list[str]:
        """What the server is told of the others."""
        return [f"nats://127.0.0.1:{way.port}" for way in self.ways if way.here == server]

    def cut_off(self, server: int) -> None:
        """This server and the others hear nothing of each other."""
        for way in self.ways:
            way.silent = server in (way.here, way.there)

    def heal(self) -> None:
        for way in self.ways:
            way.silent = False

    async def stop(self) -> None:
        with contextlib.suppress(OSError):
            await asyncio.gather(*(way.stop() for way in self.ways))


# Nobody reaches a server's routes there: without it servers would tell each other the way round the
# proxies.
NOWHERE = 'advertise: "127.0.0.1:9", '
LEAVES_WITHIN = 45.0  # seconds; a lame duck may take thirty to send its clients away
JOINS_WITHIN = 20.0  # seconds
LOOK_EVERY = 0.1  # seconds


@dataclass
class Servers:
    """A cluster, in the order of its start. url: of all, separated by commas."""

    all: list[EmbeddedServer]
    proxies: RouteProxies
    monitors: list[int]

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.all)

    def url_from(self, first: int) -> str:
        """The same URLs, with another server first: so processes are spread over the servers."""
        at = first % len(self.all)
        return ",".join(server.url for server in [*self.all[at:], *self.all[:at]])

    async def leader_of(self, link: Link, stream: str) -> int:
        """The server that leads a stream. Raises `Unavailable`, `ApiError`."""
        info = await jetstream.call(link, api("STREAM.INFO", stream))
        return self._named(str((info.get("cluster") or {}).get("leader", "")))

    async def meta_leader(self) -> int:
        """The server that leads the cluster's JetStream. Raises `Unavailable`."""
        for port in self.monitors:
            try:
                info = await asyncio.to_thread(_jsz, port)
            except OSError:
                continue
            return self._named(str((info.get("meta_cluster") or {}).get("leader", "")))
        raise Unavailable("no server tells who leads JetStream")

    def _named(self, name: str) -> int:
        for index, server in enumerate(self.all):
            if server.name == name:
                return index
        raise Unavailable(f"no server of the cluster is called {name!r}")

    async def send_away(self, index: int) -> None:
        """Lame-duck mode, until the process has ended. Raises `Unavailable`."""
        server = self.all[index]
        server.send(signal.SIGUSR2)
        deadline = time.monotonic() + LEAVES_WITHIN
        while server.alive:
            if time.monotonic() > deadline:
                raise Unavailable(f"{server.url} did not leave within {LEAVES_WITHIN:g} s")
            await asyncio.sleep(LOOK_EVERY)

    async def bring_back(self, index: int) -> None:
        """Start it again, and wait until it takes part. Raises `Unavailable`."""
        await self.all[index].start()
        await self.takes_part(index)

    async def takes_part(self, index: int) -> None:
        """Wait until a server has all that it missed. Raises `Unavailable`."""
        deadline = time.monotonic() + JOINS_WITHIN
        while not await asyncio.to_thread(_is_healthy, self.monitors[index]):
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.all[index].url} did not take part again")
            await asyncio.sleep(LOOK_EVERY)


@asynccontextmanager
async def start_servers(count: int) -> AsyncIterator[Servers]:
    """A cluster that has a leader. Raises `Unavailable`."""
    async with AsyncExitStack() as stack:
        ports = free_ports(2 * count)
        routes, monitors = ports[:count], ports[count:]
        proxies = RouteProxies(routes)
        await proxies.start()
        stack.push_async_callback(proxies.stop)
        servers = [
            EmbeddedServer(
                more=cluster_lines("bench", routes[i], proxies.routes(i), NOWHERE)
                + f'http: "127.0.0.1:{monitors[i]}"\n'
            )
            for i in range(count)
        ]
        for server in servers:
            await stack.enter_async_context(server)
        await elected(LinkOptions(servers=[server.url for server in servers]))
        yield Servers(servers, proxies, monitors)


def _jsz(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz", timeout=2) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
