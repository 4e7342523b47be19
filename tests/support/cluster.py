"""The servers of a cluster that scenarios kill, cut off, and send away."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nodes.up.embedded_cluster import cluster_lines, elected, free_ports
from nodes.up.embedded_server import EmbeddedServer
from support.link_proxy import LinkProxy
from swarm.errors import Unavailable
from swarm.link import Link, LinkOptions, jetstream
from swarm.subjects import api


class Routes:
    """A proxy for each way from one server to another one's route port, so that one of them can be
    cut off from the others. Clients reach every server all the time."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ways = {
            (here, there): LinkProxy(port)
            for here in range(len(ports))
            for there, port in enumerate(ports)
            if here != there
        }

    def of(self, server: int) -> list[str]:
        """What the server is told of the others."""
        return [
            f"nats://127.0.0.1:{way.port}" for (here, _), way in self.ways.items() if here == server
        ]

    def cut_off(self, server: int) -> None:
        """This server and the others hear nothing of each other, and are not told: a cut route
        stays open, as behind a switch that fails."""
        for pair, way in self.ways.items():
            if server in pair:
                way.silence()

    async def heal(self) -> None:
        for way in self.ways.values():
            await way.heal()


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
    routes: Routes
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
        routes, monitors = Routes(ports[:count]), ports[count:]
        for way in routes.ways.values():
            await stack.enter_async_context(way)
        servers = [
            EmbeddedServer(
                more=cluster_lines("bench", ports[i], routes.of(i), NOWHERE)
                + f'http: "127.0.0.1:{monitors[i]}"\n'
            )
            for i in range(count)
        ]
        for server in servers:
            await stack.enter_async_context(server)
        await elected(LinkOptions(servers=[server.url for server in servers]))
        yield Servers(servers, routes, monitors)


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
