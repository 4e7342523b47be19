"""The bytes of requests that a gateway has in hand, of all its connections together: bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarm.errors import ResourceExhausted

RETRY_AFTER = 0.1  # seconds: the requests in hand have ended by then, usually


class BytesInHand:
    """most: bytes. held: those that are taken. refused: requests that found no room."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.refused = 0

    def take(self, size: int) -> None:
        """Room for so many bytes, until `give`. Raises `ResourceExhausted` where there is none."""
        if self.held + size > self.most:
            self.refused += 1
            raise ResourceExhausted(
                f"{self.held} bytes of requests are in hand at this gateway: {size} more would be "
                f"above its bound of {self.most}",
                RETRY_AFTER,
            )
        self.held += size

    def give(self, size: int) -> None:
        """So many bytes are let go."""
        self.held -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Room for the time of a block. Raises `ResourceExhausted`."""
        self.take(size)
        try:
            yield
        finally:
            self.give(size)
