"""A link that leads nowhere, for requesters whose messages a test looks at."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import SwarmError
from swarm.link import Link, LinkOptions
from swarm.wire.tensors import Part


class Wire(Link):
    """It refuses with `error`, or keeps the subjects, and reply subjects, of what was sent."""

    def __init__(self) -> None:
        super().__init__(LinkOptions(servers=("nats://127.0.0.1:1",)))
        self.error: SwarmError | None = None
        self.sent: list[str] = []
        self.subjects: list[str] = []

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
