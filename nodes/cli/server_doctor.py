"""What is wrong with what a mesh keeps at its servers, for `swarm doctor --nats URL`."""

from __future__ import annotations

from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.versions.upkeep import Flaw, upkeep_by_operator


async def look_at_mesh(target: Target) -> list[Flaw]:
    """Look, and mend nothing. Raises `SwarmError`."""
    async with client_of(target, signs=False) as client:
        models = dict.fromkeys(model for model, _ in await client.registry.models())
        return list((await upkeep_by_operator(client, models, mends=False)).left)
