"""A user of each role, and what each connects with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm.security.authority.authority import Authority
from swarm.security.rights import ROLES

GONE = {"learner", "dashboard", "updater"} - set(ROLES)  # of features that are not there
_NODES = ["edge", "shard-1", "shard-2", "fallback", "standby", "gateway", "learner"]
NODES = " ".join(user for user in _NODES if user not in GONE)
_OTHERS = [user for user in ("dashboard", "updater") if user not in GONE]
USERS = ("client", "requester", *NODES.split(), *_OTHERS, "operator")


def issued(folder: Path, roles: Sequence[str] = USERS) -> Authority:
    """An authority, and a user of each role whose name is the role's."""
    authority = Authority.create(folder, "default")
    for role in roles:
        authority.add(role, role, ["*"] if role == "gateway" else ["digits"], stages=3)
    return authority


def files(authority: Authority, user: str, plain: bool) -> dict[str, str]:
    if plain:
        return {"nkey": str(authority.seed(user))}
    return {"credentials": str(authority.credentials(user))}
