"""What a client that asks for answers by messages needs of a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from swarm.errors import PermissionDenied
from swarm.link.grants import Grants
from swarm.link.types import LinkMessage
from swarm.wire.tensors import Part


class Carrier(Protocol):
    """A connection to NATS: `Link`, or that of another library (`swarm.over`)."""

    on_up: list[Callable[[], None]]
    on_denied: list[Callable[[str, PermissionDenied], None]]

    @property
    def grants(self) -> Grants:
        """What its user may do."""
        ...

    def expect(self, callback: Callable[[LinkMessage], None]) -> str:
        """A new reply subject, whose messages go to `callback`."""
        ...

    def forget(self, reply: str) -> None:
        """Nobody waits for messages to this reply subject any more."""
        ...

    async def ready(self) -> None:
        """Wait for a connection. Raises `NotConnected` where there will be none."""
        ...

    async def request(
        self, subject: str, data: Sequence[Part] | bytes, timeout: float
    ) -> LinkMessage:
        """One request, one reply, within so many seconds. Raises `NoResponders`, `NotConnected`,
        `MessageTooLarge`, `TimeoutError`."""
        ...

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message. Raises `SwarmError` where that is not possible."""
        ...
