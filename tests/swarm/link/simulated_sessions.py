"""A server that a link reaches without a socket, in simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from swarm.link import Link
from swarm.link.grants import ASK

MOST_SESSIONS = 10_000  # a link that asks so often makes no pause: the test fails


class Session(asyncio.Transport):
    """One connection: it answers each PING, unless it hangs."""

    def __init__(self, server: SimulatedServer, link: Link) -> None:
        super().__init__({"sslcontext": None, "socket": None})
        self._server = server
        self._link = link
        self._ended = False
        self.sent: list[bytes] = []  # lines of the link

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for line in bytes(data).splitlines():
            self.sent.append(line)
            if line == b"PING" and not self._server.hangs:
                self.say(b"PONG\r\n")
            if line.startswith(f"PUB {ASK}".encode()):
                self._server.on_asked(self)

    def say(self, data: bytes) -> None:
        """The server sends these bytes."""
        asyncio.get_running_loop().call_soon(self._say, data)

    def _say(self, data: bytes) -> None:
        if not self._ended:
            self._link.get_buffer(-1)[: len(data)] = data
            self._link.buffer_updated(len(data))

    def end(self) -> None:
        """The server ends the connection."""
        asyncio.get_running_loop().call_soon(self._end)

    abort = end

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._link.connection_lost(None)


class SimulatedServer:
    """In place of `open_session`. info: what it greets with. on_asked: called when a link asks what
    its user may do."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.hangs = False
        self.sessions: list[Session] = []
        self.on_asked: Callable[[Session], None] = lambda session: None

    async def __call__(
        self, loop: asyncio.AbstractEventLoop, link: Link, url: object, options: object
    ) -> dict[str, Any]:
        assert len(self.sessions) < MOST_SESSIONS
        session = Session(self, link)
        self.sessions.append(session)
        link.connection_made(session)
        return dict(json.loads(json.dumps(self.info)))
