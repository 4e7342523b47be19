"""The rights that the server gives this connection's user, as it tells them on request. Pure.

A process that knows them leaves out what it may not do, instead of trying: each try would be a
violation in the server's log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import PermissionDenied
from swarm.security.rights.permissions import who_may
from swarm.security.rights.store import without_way
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
    """What the user may do: everything, until the server has told its rights. user: its name."""

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
    """The rights in the server's answer to `ASK`. An answer that cannot be read counts as every
    right."""
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


# What the server denies a connection: read from its `-ERR`, told in a sentence, logged once.


log = logging.getLogger("swarm.link")

_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.I)
MOST_LOGGED = 256  # subjects; each later one is told to whoever waits, and not logged


@dataclass(frozen=True, slots=True)
class Denial:
    """A publish, or a subscription, that the server refused."""

    publish: bool
    subject: str

    def error(self) -> PermissionDenied:
        """The error for whoever waits: it names the subject, and the roles that may."""
        verb = "publish to" if self.publish else "subscribe to"
        roles = who_may(self.publish, self.subject)
        may = f"the roles {', '.join(roles)} may" if len(roles) > 1 else "no role may"
        if len(roles) == 1:
            may = f"the role {roles[0]} may"
        return PermissionDenied(f"this user may not {verb} {self.subject}: {may}")


def read_denial(text: str) -> Denial | None:
    """The denial in the text of an `-ERR`, or None where it is about something else."""
    found = _VIOLATION.match(text)
    return None if found is None else Denial(found[1].lower() == "publish", without_way(found[2]))


class DenialLog:
    """Logs each denied subject once. Answers go to a new subject each: they count as one."""

    def __init__(self) -> None:
        self._logged: set[tuple[bool, str]] = set()

    def note(self, denial: Denial, error: PermissionDenied) -> None:
        """Log it, unless its subject was logged before."""
        subject = denial.subject
        if denial.publish and subject.startswith("_INBOX."):
            subject = "_INBOX"
        key = (denial.publish, subject)
        if key not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(key)
            log.warning("%s", error)
