"""A far client's link to its server: a TCP proxy that delays, and counts bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast


class FarLink:
    """`async with FarLink(port, delay) as link`: connections to `link.port` go to `port` of this
    host, and each byte comes `delay` seconds later, each way. sent, received: bytes of the one who
    connects, since the beginning."""

    def __init__(self, target: int, delay: float) -> None:
        self.port = 0
        self.sent = self.received = 0
        self.delay = delay
        self._target = target
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FarLink:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Near(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def connect(self, near: _Near) -> None:
        """The other half of a connection."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: _Far(self, near), "127.0.0.1", self._target)


class _End(asyncio.Protocol):
    """Writes what came, in its order, when it is due."""

    def __init__(self, link: FarLink) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self._late: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is of another class

    def give(self, data: bytes) -> None:
        """Write it later."""
        self._late.append(data)
        asyncio.get_running_loop().call_later(self.link.delay, self._write)

    def _write(self) -> None:
        data = self._late.popleft()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Near(_End):
    def __init__(self, link: FarLink) -> None:
        super().__init__(link)
        self.far: _Far | None = None
        self._early: list[bytes] = []
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.create_task(self.link.connect(self), name="the far half")

    def opened(self, far: _Far) -> None:
        """The other half is there."""
        self.far = far
        for data in self._early:
            far.give(data)

    def data_received(self, data: bytes) -> None:
        self.link.sent += len(data)
        if self.far is None:
            self._early.append(data)
        else:
            self.far.give(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.far is not None:
            self.far.end()


class _Far(_End):
    def __init__(self, link: FarLink, near: _Near) -> None:
        super().__init__(link)
        self._near = near

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._near.opened(self)

    def data_received(self, data: bytes) -> None:
        self.link.received += len(data)
        self._near.give(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._near.end()
