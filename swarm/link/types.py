"""The options of a link, and the messages that it delivers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class LinkMessage:
    """A received message: `reply` is "" and `headers` None where it has none.

    headers: the whole block of bytes, from `NATS/1.0` on. data: a view where it is large.
    """

    subject: str
    reply: str
    headers: bytes | None
    data: bytes | memoryview

    @property
    def status(self) -> bytes:
        """The status code of a header-only message, as in `NATS/1.0 503`; else empty."""
        headers = self.headers
        return headers[9:12] if headers is not None and headers[8:9] == b" " else b""


@dataclass(frozen=True)
class LinkOptions:
    """How a link connects. Times in seconds, sizes in bytes.

    servers: URLs, tried in turn. name: shown by the server. inbox: the subject below which
    everything for this process alone is sent.
    """

    servers: Sequence[str] = ("nats://127.0.0.1:4222",)
    name: str = "swarm"
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None  # path of a .creds file
    tls: ssl.SSLContext | None = None
    tls_first: bool = False  # the handshake comes before INFO
    connect_timeout: float = 2.0
    ping_interval: float = 1.0  # a dead link is noticed after two of them
    max_backoff: float = 1.0
    max_pending: int = 64 << 20  # unsent bytes above which publishing is refused
    inbox: str = field(default_factory=lambda: f"_INBOX.{os.urandom(9).hex()}")
