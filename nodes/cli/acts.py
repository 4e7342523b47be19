"""What an operator's command has done, on record where the mesh keeps acts."""

from __future__ import annotations

from typing import Any

import swarm
from nodes.acts import are_noted, note
from nodes.cli.options import Servers
from nodes.console import err
from swarm.errors import SwarmError


async def on_record(
    client: swarm.Mesh, act: str, model: str = "", version: str = "", **more: Any
) -> None:
    """Record an act that was done. Where the audit cannot be written, the act stands, and a line on
    standard error says so. more: texts and integers."""
    if model:
        more |= {"model": model, "version": version}
    try:
        await note(client.link, client.subjects, act, more)
    except SwarmError as error:
        err.print(f"not in the audit: {act}: {error}", markup=False, soft_wrap=True)


async def auth_on_record(servers: Servers, mesh: str, act: str, user: str) -> None:
    """As `on_record`, of an act on a folder of keys: only where servers are told of it, and as the
    user of --credentials. Before they are told: the act may end that user's own connection."""
    if not (servers.nats and are_noted()):
        return
    if not (servers.credentials or servers.nkey):
        err.print(f"not in the audit: {act}: give an operator's --credentials too")
        return
    try:
        async with swarm.connect(servers.nats, mesh, **servers.access.options()) as client:
            await on_record(client, f"auth-{act}", **({"user": user} if user else {}))
    except SwarmError as error:
        err.print(f"not in the audit: {act}: {error}", markup=False, soft_wrap=True)
