"""A door of the gateway: a server of one protocol, and the figures that it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# Of ASGI.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class Figures:
    """by_code: answers by the protocol's own code, "200" or "OK". in_flight: requests that wait
    for their answer. connections: those that are open, as far as the door knows them. is_draining:
    the door says that it is not ready, and answers on."""

    by_code: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    connections: int = 0
    knows_connections: bool = True
    is_draining: bool = False

    def status(self) -> dict[str, Any]:
        """Of the status document."""
        connections = {"connections": self.connections} if self.knows_connections else {}
        return {"by_code": dict(self.by_code), "in_flight": self.in_flight, **connections}


class Door(Protocol):
    """`start` once, `begin_drain` and `drain` once."""

    figures: Figures

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        ...

    async def start(self) -> None:
        """Listen. Raises `InvalidArgument` where nobody may listen there."""
        ...

    def begin_drain(self) -> None:
        """Say that it is not ready, and go on answering, until `drain`."""
        ...

    async def drain(self, timeout: float) -> None:
        """Take no more requests, answer those in flight within so many seconds, and end every
        connection so that its client knows that it may ask elsewhere."""
        ...
