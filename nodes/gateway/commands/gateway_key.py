"""`swarm keys gateway`: a key for a client of a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.command import option
from nodes.cli.options import AGENT, Json
from nodes.console import conclude
from nodes.gateway.access.rules import block, new_key, read_rules
from swarm.errors import BadKey
from swarm.security.files import alone, replace


async def gateway_key(
    agent: Annotated[str, AGENT, typer.Argument(help="The mesh's name for who gets the key.")],
    callers: Annotated[
        str, typer.Argument(help="File of `swarm-node --gateway-callers`; made where missing.")
    ] = "gateway.toml",
    quota: float = option(0.0, "Requests a second that it may ask; 0: any number.", min=0),
    json: Json = False,
) -> None:
    """Make a key with which a client of HTTP or gRPC asks a gateway; it is shown once."""
    key = add_key(Path(callers), agent, quota)
    conclude(
        json,
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
            before = path.read_text(encoding="utf-8") if path.exists() else ""
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
