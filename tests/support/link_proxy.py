"""The link between two servers: a TCP proxy that can be cut, or fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import math

READ = 1 << 16  # bytes at a time


class LinkProxy:
    """`async with LinkProxy(port) as link`: connections to `link.port` go to `port` of this host.

    A link that is cut refuses connections and ends those that stood. One that is silent keeps
    them, and carries nothing: neither end hears of it. rate: bytes a second, each way. host: the
    address that it listens on.
    """

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.rate = math.inf
        self._target = target
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LinkProxy:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """End all connections, and take none until `heal`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def silence(self) -> None:
        """Carry nothing until `heal`, without a word to either end."""
        self._flows.clear()

    async def heal(self) -> None:
        """Carry again."""
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the link was cut
                await self._carry(reader, writer)
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return
        try:
            ways = {
                asyncio.ensure_future(self._pump(reader, far_writer)),
                asyncio.ensure_future(self._pump(far_reader, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        finally:
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # uvloop's, where the other end has closed
            while data := await reader.read(READ):
                await self._flows.wait()
                if self.rate < math.inf:
                    await asyncio.sleep(len(data) / self.rate)
                writer.write(data)
                await writer.drain()
