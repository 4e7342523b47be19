"""What the server denies a connection: read from its `-ERR`, told in a sentence, logged once."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from swarm.errors import PermissionDenied
from swarm.security.rights.permissions import who_may
from swarm.security.rights.store import without_way

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
