"""The rights that the server gives this connection's user, as it tells them on request. Pure.

A process that knows them leaves out what it may not do, instead of trying: each try would be a
violation in the server's log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.subjects import covers

# The server's answer leaves out what may be subscribed to in a queue group only.
ASK = "$SYS.REQ.USER.INFO"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Patterns; an empty `allow` allows everything that `deny` does not name."""

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()

    def includes(self, subject: str) -> bool:
        """Whether this subject, or every subject of this pattern, is allowed."""
        if any(covers(pattern, subject) for pattern in self.deny):
            return False
        return not self.allow or any(covers(pattern, subject) for pattern in self.allow)


@dataclass(frozen=True, slots=True)
class Grants:
    """What the user may do; everything, as long as nobody has said otherwise. user: its name."""

    user: str = ""
    publish: Allowed = Allowed()
    subscribe: Allowed = Allowed()

    def may_publish(self, subject: str) -> bool:
        return self.publish.includes(subject)

    def may_subscribe(self, subject: str) -> bool:
        """Of subscriptions without a queue group."""
        return self.subscribe.includes(subject)


EVERYTHING = Grants()


def read_grants(answer: bytes) -> Grants:
    """The server's answer to `ASK`; one that cannot be read says nothing: everything."""
    try:
        data = json.loads(answer)["data"]
        permissions = data.get("permissions") or {}
        return Grants(
            str(data.get("user_name") or data.get("user") or ""),
            _allowed(permissions.get("publish")),
            _allowed(permissions.get("subscribe")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return EVERYTHING


def _allowed(doc: object) -> Allowed:
    if not isinstance(doc, dict):
        return Allowed()
    return Allowed(tuple(map(str, doc.get("allow") or ())), tuple(map(str, doc.get("deny") or ())))
