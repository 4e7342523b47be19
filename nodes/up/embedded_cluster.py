"""An embedded cluster: several real nats-servers of one machine, joined by routes on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Sequence

from nodes.up.embedded_server import MAX_PAYLOAD, EmbeddedServer
from swarm.errors import SwarmError, Unavailable
from swarm.link import Link, LinkOptions, jetstream
from swarm.subjects import api

ELECTED_WITHIN = 30.0  # seconds in which new servers agree on a leader; measured: 3 to 9
ASK_EVERY = 0.2  # seconds
# The server takes no shorter time for a lame duck than 30 s. Clients of the mesh leave it at once.
LAME_DUCK = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "2s"\n'


def cluster_lines(
    name: str, port: int, routes: Sequence[str], more: str = "", host: str = "127.0.0.1"
) -> str:
    """The lines of a server's configuration that make it one of a cluster.

    port, host: where it takes routes. routes: URLs of all servers' routes. more: settings
    inside `cluster {}`. Its pings tell a route that was cut without a word after three seconds.
    """
    return LAME_DUCK + (
        f'cluster {{ name: {json.dumps(name)}, listen: "{host}:{port}", '
        f'ping_interval: "1s", ping_max: 2, {more}'
        f"routes: {json.dumps(list(routes))} }}\n"
    )


class EmbeddedCluster:
    """Servers that run as children: `async with EmbeddedCluster(3) as cluster: cluster.url`.

    servers: in the order of their start; each may be ended and started again by itself. Arguments
    as of `EmbeddedServer`; name: of the cluster.
    """

    def __init__(
        self,
        count: int = 3,
        max_payload: int = MAX_PAYLOAD,
        more: str = "",
        name: str = "swarm",
        store_key: str = "",
    ) -> None:
        ports = free_ports(count)
        routes = [f"nats://127.0.0.1:{port}" for port in ports]
        self.servers = [
            EmbeddedServer(
                max_payload=max_payload,
                more=cluster_lines(name, port, routes) + more,
                store_key=store_key,
            )
            for port in ports
        ]

    @property
    def url(self) -> str:
        """The URLs of all servers, separated by commas."""
        return ",".join(server.url for server in self.servers)

    async def start(self) -> None:
        """Start all servers, and wait until they listen. Raises as `EmbeddedServer.start`."""
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers:
                    group.create_task(server.start())
        except* (Unavailable, OSError) as errors:
            await self.stop()
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        """End all servers; their temporary stores go too."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def __aenter__(self) -> EmbeddedCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def elected(options: LinkOptions, timeout: float = ELECTED_WITHIN) -> None:
    """Wait until a cluster's JetStream has a leader, which alone answers questions about all of
    it. Raises `Unavailable` after `timeout` seconds, and `NotAdmitted`."""
    link = Link(options)
    running = asyncio.create_task(link.run(), name="elected")
    deadline = time.monotonic() + timeout
    try:
        await link.ready(timeout)
        while True:
            try:
                await jetstream.call(link, api("INFO"), timeout=1.0)
                return
            except SwarmError as error:
                if time.monotonic() > deadline:
                    text = f"the servers did not agree on a leader within {timeout:g} s: {error}"
                    raise Unavailable(text) from None
            await asyncio.sleep(ASK_EVERY)
    finally:
        await link.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on at this moment."""
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in opened:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in opened]
