"""The options of a link, and the messages that it delivers."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from swarm.addresses import checked, split_url
from swarm.errors import PermissionDenied
from swarm.link.access import inbox_owner, tls_context
from swarm.link.grants import Grants
from swarm.subjects import TOKEN, token
from swarm.wire.tensors import Part


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

    servers: URLs of one server or of one cluster, tried in turn, or one text that separates them by
    commas; others of the cluster are learned. replicas: servers of a cluster that keep a copy of
    each stream that is made over this link, 0 for three where there are as many. name: shown by
    the server. inbox: the subject below which everything for this process alone is sent; without
    one, `_INBOX.<user>.<random>`, so that a user's rights can name it. domain: the JetStream domain
    that streams, keys and objects are in, "" for the server's own. Raises `NotAdmitted` for a file
    of keys that cannot be used, `BadAddress` for a server whose address cannot be one, and
    `SubjectError` for a domain that cannot be one.
    """

    servers: Sequence[str] = ("nats://127.0.0.1:4222",)
    name: str = "swarm"
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None  # path of a .creds file: a JWT and a seed
    nkey: str | None = None  # path of a file with a user's seed
    tls: ssl.SSLContext | None = None  # used instead of the files below
    tls_ca: str = ""  # path: the authorities that the server's certificate may come from
    tls_cert: str = ""  # path: this client's certificate
    tls_key: str = ""  # path: its key
    tls_first: bool = False  # the handshake comes before INFO
    connect_timeout: float = 2.0
    ping_interval: float = 1.0  # a dead link is noticed after two of them
    max_backoff: float = 1.0
    replicas: int = 0
    congestion: str = ""  # of TCP, for what is sent from here: bbr, cubic …; "" for the system's
    max_pending: int = 64 << 20  # unsent bytes above which publishing is refused
    inbox: str = ""
    domain: str = ""

    def __post_init__(self) -> None:
        if self.domain:
            token(self.domain, "JetStream domain")
        object.__setattr__(self, "servers", checked(self.servers))
        tls_context(self)  # checked here, so that a fault is raised before anything starts
        if not self.inbox:
            owner = self.connects_as
            # Twelve characters: a socket of the host bears the inbox as its name.
            parts = ["_INBOX", *([owner] if owner else []), secrets.token_urlsafe(9)]
            object.__setattr__(self, "inbox", ".".join(parts))

    @property
    def connects_as(self) -> str:
        """The user who connects, as rights name it; "" where nobody connects by name."""
        return inbox_owner(self) or _user_of(self.servers)


def _user_of(servers: Sequence[str]) -> str:
    """The user in the servers' URLs, where there is one that may stand in a subject."""
    for server in servers:
        url = split_url(server)
        user = unquote(url.username or "")
        if url.password is not None and TOKEN.fullmatch(user):
            return user
    return ""


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
