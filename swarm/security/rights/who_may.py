"""Which roles may publish or subscribe a subject: for the sentence that tells a denial."""

from __future__ import annotations

import re
from functools import lru_cache

from swarm.security.rights.table import ROLES, TABLE, Role

_PLACE = re.compile(r"\\\{[a-z]+\\\}|\\\*")


@lru_cache(maxsize=256)
def _pattern(subject: str) -> re.Pattern[str]:
    """All subjects that a row stands for, of any mesh, model and stage."""
    if subject.endswith(">"):
        subject, rest = subject[:-1], ".+"
    else:
        rest = ""
    return re.compile(_PLACE.sub("[^.]+", re.escape(subject)) + rest)


def who_may(publish: bool, subject: str) -> list[str]:
    """The roles that may publish to `subject`, or subscribe to it, in the right mesh, for the
    right model and stage."""
    roles: set[Role] = set()
    for row in TABLE:
        if _pattern(row.subject).fullmatch(subject):
            roles |= row.publish if publish else row.subscribe
    return [str(role) for role in ROLES if role in roles]
