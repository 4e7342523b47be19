"""How much of the servers the accounts of a mesh may take.

The server itself holds them: a connection, subscription, stream or consumer too many is refused,
and a message that is too large ends its sender's connection. -1 stands for no limit. How often
somebody may ask is not among them: NATS limits no rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from swarm.errors import InvalidArgument
from swarm.security.rights.table import Role

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """connections: of the members' account, and as many of the clients', over all servers.
    subscriptions: of one connection; a server of a site takes all of its nodes' through one.
    payload: bytes of a member's message; the server's own limit holds beside it. client_payload:
    of a client's. streams, consumers: of the mesh; each stage of a model version has one stream,
    and a consumer. memory, disk: bytes of all streams, unlimited unless set: the server sets aside
    as much at once.

    Raises `InvalidArgument` for what is no number from 1 on, or -1.
    """

    connections: int = 8192
    subscriptions: int = 1 << 16
    payload: int = 64 << 20
    client_payload: int = 8 << 20
    streams: int = 4096
    consumers: int = 1 << 14
    memory: int = UNLIMITED
    disk: int = UNLIMITED

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not (value == UNLIMITED or 0 < value < 1 << 62):
                raise InvalidArgument(f"{name} is a number from 1 on, or -1, and not {value!r:.40}")

    @classmethod
    def from_doc(cls, doc: Any) -> AccountLimits:
        """As `asdict` wrote them; what is missing has its default. Raises `InvalidArgument`."""
        known = {each.name for each in fields(cls)}
        if not isinstance(doc, Mapping) or not set(doc) <= known:
            raise InvalidArgument(f"limits are {', '.join(sorted(known))}")
        return cls(**doc)

    def message_of(self, role: str) -> int:
        """The most bytes of a message of this role."""
        return self.client_payload if role == Role.CLIENT else self.payload

    def account(self, jetstream: bool, payload: int) -> dict[str, Any]:
        """The limits in an account's JWT. Without the last four it has no JetStream."""
        limits: dict[str, Any] = {
            "subs": self.subscriptions,
            "data": UNLIMITED,  # nats-server 2.15 does not look at it
            "payload": payload,
            "imports": UNLIMITED,
            "exports": UNLIMITED,
            "conn": self.connections,
            "leaf": UNLIMITED,
            "wildcards": True,
        }
        if jetstream:
            limits |= {
                "mem_storage": self.memory,
                "disk_storage": self.disk,
                "streams": self.streams,
                "consumer": self.consumers,
            }
        return limits

    def as_conf(self, payload: int) -> str:
        """The limits of an account in a server's configuration."""
        return (
            f"limits {{ max_connections: {self.connections}, "
            f"max_subscriptions: {self.subscriptions}, max_payload: {payload} }}"
        )


# Of the system account, by which the authority speaks to its servers.
NO_LIMITS = AccountLimits(*[UNLIMITED] * len(fields(AccountLimits)))
