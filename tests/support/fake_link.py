"""A link without a server: a test looks at what is sent, or carries it where it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm.link import Link, LinkMessage, LinkOptions
from swarm.wire.tensors import Part


class FakeLink(Link):
    """What is published comes to `carry`, as one whole message; a server's part is played there.

    error: raised instead. sent: subject and data of each message; `replies`: the reply subjects of
    those that have one. expected: the reply subjects on which somebody waits.
    """

    def __init__(self, inbox: str = "") -> None:
        options = LinkOptions(servers=("nats://127.0.0.1:1",))
        super().__init__(LinkOptions(options.servers, inbox=inbox) if inbox else options)
        self.error: Exception | None = None
        self.sent: list[tuple[str, bytes]] = []
        self.replies: list[str] = []
        self.expected: set[str] = set()
        self._connected_again = asyncio.Event()

    @property
    def subjects(self) -> list[str]:
        """Of the messages sent."""
        return [subject for subject, _ in self.sent]

    def publish(
        self,
        subject: str,
        data: Sequence[Part] | bytes = b"",
        reply: str = "",
        headers: bytes = b"",
    ) -> None:
        whole = data if isinstance(data, bytes) else b"".join(data)
        self.carry(LinkMessage(subject, reply, headers or None, whole))

    def carry(self, message: LinkMessage) -> None:
        """Send a message."""
        if self.error is not None:
            raise self.error
        self.sent.append((message.subject, bytes(message.data)))
        if message.reply:
            self.replies.append(message.reply)

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
