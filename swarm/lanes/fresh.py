"""Fast mode's lane: a core NATS queue group. Nothing is stored, so nothing is settled."""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.link import Link, LinkMessage
from swarm.local.host_socket import HostSocket

# Of the primaries, and of who covers for them: a process that hangs keeps its subscription, and a
# group of both would give it every second message. So each group gets all; what both answer counts
# once.
QUEUE, COVER = "stage", "cover"


class FreshDelivery:
    """Looks like a `Delivery` to a stage; losing it is the requester's to notice."""

    __slots__ = ("age", "data", "delivered", "direct", "fresh", "pending", "received", "reply")

    def __init__(self, message: LinkMessage, sent: int = 0) -> None:
        """sent: for what came directly, ns of `time.monotonic_ns`."""
        self.data = message.data
        self.direct = sent > 0
        self.reply = message.reply
        self.received = time.monotonic_ns()
        self.age = (self.received - sent) / 1e9 if sent else 0.0
        self.delivered = 1
        self.pending = 0
        self.fresh = True

    @property
    def settled(self) -> bool:
        return False

    def worked(self) -> None:
        """Nothing to settle."""

    def unworked(self) -> None:
        """Nothing to settle."""

    def ack(self) -> bool:
        """Nothing to settle."""
        return True

    def nak(self, delay: float = 0.0) -> None:
        """Nothing to settle: the requester asks again."""

    def term(self) -> None:
        """Nothing to settle."""

    def withdraw(self) -> bool:
        """There is no other copy."""
        return False


class FreshLane:
    """One stage's queue group, and what comes for it from this host without the server; `open` and
    `close` at will (a fallback opens when it must). queue: `QUEUE`, or `COVER`."""

    def __init__(
        self,
        link: Link,
        subject: str,
        on_delivery: Callable[[FreshDelivery], None],
        direct: HostSocket | None = None,
        queue: str = QUEUE,
    ) -> None:
        self._link = link
        self._queue = queue
        self._subject = subject
        self._on_delivery = on_delivery
        self._direct = direct
        self._sid = 0

    @property
    def is_open(self) -> bool:
        return self._sid != 0

    def open(self) -> None:
        if not self._sid:
            self._sid = self._link.subscribe(
                self._subject, lambda m: self._on_delivery(FreshDelivery(m)), self._queue
            )
            if self._direct is not None:
                self._direct.listen(self._subject, self._came_direct)

    def _came_direct(self, data: bytes, sent: int, _reply: str) -> None:
        message = LinkMessage(self._subject, "", None, data)
        self._on_delivery(FreshDelivery(message, sent))

    async def close(self) -> None:
        """Take no more; what the server had sent already still arrives."""
        sid, self._sid = self._sid, 0
        if sid:
            if self._direct is not None:
                self._direct.forget(self._subject)
            await self._link.unsubscribe_and_drain(sid)
