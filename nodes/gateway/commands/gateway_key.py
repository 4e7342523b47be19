"""`swarm keys gateway`: a key for a client of a gateway."""

from __future__ import annotations

from pathlib import Path

from nodes.console import conclude
from nodes.gateway.access.rules import block, new_key, read_rules
from swarm.errors import BadKey
from swarm.security.files import alone, replace


async def run_gateway_key(agent: str, callers: str, quota: float, as_json: bool) -> None:
    """`swarm keys gateway`."""
    key = add_key(Path(callers), agent, quota)
    conclude(
        as_json,
        {"agent": agent, "key": key, "callers": callers},
        key,
        f"{callers} has its hash; the key itself is kept nowhere",
        f"next: swarm-node --role gateway --http 8000 --gateway-callers {callers}",
        f'and ask: curl -H "Authorization: Bearer {key}" http://127.0.0.1:8000/v2',
    )


def add_key(path: Path, agent: str, quota: float) -> str:
    """A new key, in the file from now on. quota: 0.0 for any number. Raises `BadKey`."""
    if path.is_dir():  # "" is this one
        raise BadKey(f"{path}: a folder: name a file, as gateway.toml")
    key = new_key()
    fresh = path.with_name(f".{path.name}.new")
    try:
        with alone(path):
            before = path.read_text() if path.exists() else ""
            added = before + ("\n" if before else "") + block(agent, key, quota)
            try:
                replace(fresh, added.encode())
                read_rules(fresh)  # else no gateway could read it either
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise BadKey(f"{path}: {error}") from None
    return key
