"""In place of a server, in simulated time: carries what members send, each message in `TRIP`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from real_server import Links
from support.fake_link import FakeLink

from swarm.errors import NotConnected
from swarm.link import Link, LinkMessage

TRIP = 0.0002  # seconds
NOBODY = b"NATS/1.0 503\r\n\r\n"


def now() -> float:
    """The simulated time, in seconds."""
    return asyncio.get_running_loop().time()


class SimulatedLink(FakeLink):
    """A link of one member. listens: (subject, callback) by subscription."""

    def __init__(self, server: SimulatedLinks) -> None:
        self.listens: dict[int, tuple[str, Callable[[LinkMessage], None]]] = {}
        self._sids = count(1)
        self._server = server
        super().__init__()
        self.connected = True

    def subscribe(
        self, subject: str, callback: Callable[[LinkMessage], None], queue: str = ""
    ) -> int:
        sid = next(self._sids)
        self.listens[sid] = (subject, callback)
        return sid

    def unsubscribe(self, sid: int) -> None:
        self.listens.pop(sid, None)

    def carry(self, message: LinkMessage) -> None:
        if not self.connected:
            raise NotConnected("no connection")
        asyncio.get_running_loop().call_later(TRIP, self._server.carry, self, message)

    async def flush(self, timeout: float = 5.0) -> None:
        await asyncio.sleep(2 * TRIP)


class SimulatedLinks(Links):
    """The links, and the server between them. published: (moment, subject) of each message."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[SimulatedLink] = []
        self.published: list[tuple[float, str]] = []

    async def connect(self, *urls: str, **options: object) -> SimulatedLink:
        self.links.append(SimulatedLink(self))
        return self.links[-1]

    async def crash(self, link: Link) -> None:
        link.connected = False

    def cut(self, *links: Link) -> None:
        """Their connections are lost."""
        for link in links:
            link.connected = False
            for callback in link.on_down:
                callback()

    def reconnect(self, link: Link) -> None:
        link.connected = True
        for callback in link.on_up:
            callback()

    def carry(self, sender: SimulatedLink, message: LinkMessage) -> None:
        """Hand a message to all who listen to its subject; queue groups are not imitated."""
        self.published.append((now(), message.subject))
        takers = [
            callback
            for link in self.links
            if link.connected
            for subject, callback in link.listens.values()
            if subject in (message.subject, message.subject.rpartition(".")[0] + ".*")
        ]
        for callback in takers:
            callback(message)
        if message.reply and not takers and sender.connected:
            sender.deliver(LinkMessage(message.reply, "", NOBODY, b""))
