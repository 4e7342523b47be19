"""What operators do, told to the features that keep it on record."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from nodes.features import features
from swarm.link import Link
from swarm.subjects import Subjects


def person() -> str:
    """The user of this process, "" for one without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def are_noted() -> bool:
    """Whether there is a feature that keeps acts."""
    return any(feature.note is not None for feature in features())


async def note(link: Link, subjects: Subjects, act: str, fields: Mapping[str, Any]) -> bool:
    """Put on record what this process's user has done; False where nobody keeps it. fields: texts
    and integers that say what was done. Raises `SwarmError`: the act is done even so."""
    by, keep = person(), [each.note for each in features() if each.note is not None]
    return any([await noted(link, subjects, act, by, fields) for noted in keep])
