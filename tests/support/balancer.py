"""A balancer of TCP connections before two or more gateways, as simple as they come.

It asks each gateway `GET /v2/health/ready` all the time, gives a new connection to the next one
that is ready, and tries another where that one refuses. Where none is ready it tries all, as Envoy
does: a restart of the mesh's server makes all gateways unready at once. Bytes go through as they
are.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
PROBED_EVERY = 0.1  # seconds
PROBE_TIMEOUT = 1.0  # seconds
READ = 1 << 16  # bytes at a time
PROBE = b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@dataclass
class Behind:
    """A gateway: its ports by protocol, `http` among them. ready: as its last probe said."""

    ports: dict[str, int]
    ready: bool = False


class Balancer:
    """`async with Balancer([Behind(…), …]) as balancer`: `balancer.ports` by protocol."""

    def __init__(self, behind: list[Behind]) -> None:
        self.ports: dict[str, int] = {}
        self.changed = asyncio.Event()
        """Set when a gateway becomes ready or ceases to be."""
        self._behind = behind
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Balancer:
        for protocol in self._behind[0].ports:
            server = await asyncio.start_server(
                lambda reader, writer, protocol=protocol: self._own(
                    self._carry(protocol, reader, writer)
                ),
                LOOPBACK,
                0,
            )
            self._servers.append(server)
            self.ports[protocol] = server.sockets[0].getsockname()[1]
        for gateway in self._behind:
            self._own(self._probe(gateway))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, gateway: Behind, ready: bool) -> None:
        """Wait until the balancer knows that a gateway is ready, or is not."""
        while gateway.ready is not ready:
            self.changed.clear()
            await self.changed.wait()

    def _own(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, gateway: Behind) -> None:
        while True:
            ready = await _is_ready(gateway.ports["http"])
            if ready is not gateway.ready:
                gateway.ready = ready
                self.changed.set()
            await asyncio.sleep(PROBED_EVERY)  # the pace of the probes

    def _in_turn(self) -> list[Behind]:
        """All that are ready, another one first each time; where none is ready, all."""
        self._turn += 1
        ready = [gateway for gateway in self._behind if gateway.ready] or self._behind
        first = self._turn % len(ready)
        return ready[first:] + ready[:first]

    async def _carry(
        self, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer):
            for gateway in self._in_turn():
                try:
                    far = await asyncio.open_connection(LOOPBACK, gateway.ports[protocol])
                except OSError:
                    continue  # it has just gone: the next one
                await _both_ways((reader, writer), far)
                return


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            with contextlib.closing(writer):
                writer.write(PROBE)
                return (await reader.readline()).split()[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _both_ways(near: Streams, far: Streams) -> None:
    """Until one end closes; what it sent before reaches the other end."""
    with contextlib.closing(far[1]):
        ways = [
            asyncio.create_task(_pump(near[0], far[1])),
            asyncio.create_task(_pump(far[0], near[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ):
            writer.write(data)
            await writer.drain()
