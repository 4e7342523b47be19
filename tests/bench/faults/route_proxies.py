"""Proxies between the servers of a cluster, which can cut one of them off from the others.

A cut route goes silent: its connections stay open and carry nothing, as behind a switch that fails,
and new ones are accepted and carry nothing either. Clients reach every server all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field

BLOCK = 64 * 1024  # bytes
LOOK_EVERY = 0.05  # seconds between looks at whether a silent route may speak again


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
