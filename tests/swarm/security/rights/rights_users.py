"""A user of each role, and what each connects with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm.security.authority.authority import Authority

NODES = "edge shard-1 shard-2 fallback standby gateway learner"
USERS = ("client", "requester", *NODES.split(), "dashboard", "updater", "operator")


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
