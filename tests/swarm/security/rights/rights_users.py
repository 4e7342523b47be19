"""A user of each role, and what each connects with."""

from __future__ import annotations

from pathlib import Path

from swarm.security.authority.authority import Authority

USERS = (
    "client",
    "requester",
    "edge",
    "shard-1",
    "shard-2",
    "fallback",
    "standby",
    "gateway",
    "learner",
    "dashboard",
    "operator",
)
NODES = "edge shard-1 shard-2 fallback standby gateway learner"


def issued(folder: Path) -> Authority:
    authority = Authority.create(folder, "default")
    for role in USERS:
        authority.add(role, role, ["*"] if role == "gateway" else ["digits"], stages=3)
    return authority


def files(authority: Authority, user: str, plain: bool) -> dict[str, str]:
    if plain:
        return {"nkey": str(authority.seed(user))}
    return {"credentials": str(authority.credentials(user))}
