"""A link that leads nowhere, for requesters whose messages a test looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm.errors import SwarmError
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.wire.tensors import Part


class Wire(Link):
    """It refuses with `error`, or keeps the subjects, and reply subjects, of the messages sent.

    expected: the reply subjects on which somebody waits.
    """

    def __init__(self) -> None:
        super().__init__(LinkOptions(servers=("nats://127.0.0.1:1",)))
        self.error: SwarmError | None = None
        self.sent: list[str] = []
        self.subjects: list[str] = []
        self.expected: set[str] = set()
        self._connected_again = asyncio.Event()

    def publish(
        self,
        subject: str,
        data: Sequence[Part] | bytes = b"",
        reply: str = "",
        headers: bytes = b"",
    ) -> None:
        if self.error is not None:
            raise self.error
        self.subjects.append(subject)
        if reply:
            self.sent.append(reply)

    def expect(self, callback: Callable[[LinkMessage], None]) -> str:
        reply = super().expect(callback)
        self.expected.add(reply)
        return reply

    def expect_from_server(self, callback: Callable[[LinkMessage], None]) -> str:
        reply = super().expect_from_server(callback)
        self.expected.add(reply)
        return reply

    def forget(self, reply: str) -> None:
        self.expected.discard(reply)
        super().forget(reply)

    async def ready(self, timeout: float | None = None) -> None:
        async with asyncio.timeout(timeout):
            await self._connected_again.wait()

    def reconnect(self) -> None:
        """There is a connection, a new one."""
        self.connected = True
        for callback in self.on_up:
            callback()
        self._connected_again.set()
