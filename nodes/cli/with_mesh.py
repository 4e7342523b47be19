"""The client with which a command speaks with its mesh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import swarm
from nodes.cli.options import Target
from nodes.console import guarded


def connect(target: Target, agent: str = "", **more: Any) -> swarm.Mesh:
    """more: see `swarm.Mesh`. Raises `NotAdmitted` for files that cannot be used."""
    return swarm.connect(target.nats, target.mesh, agent=agent, **target.access.options(), **more)


def with_mesh(
    target: Target,
    work: Callable[[swarm.Mesh], Awaitable[int]],
    more: Callable[[], Mapping[str, Any]] = dict,
) -> int:
    """Run `work` with a connected client; returns the exit code. more(): arguments of `swarm.Mesh`;
    an error that it raises is reported too."""

    async def main() -> int:
        async with connect(target, **more()) as client:
            return await work(client)

    return guarded(main, target.json)


async def named_version(client: swarm.Mesh, model: str) -> tuple[str, str]:
    """Name and version of NAME@VERSION; of NAME the version that serves. Raises `NotFound`."""
    name, _, version = model.partition("@")
    return name, version or await client.registry.serving(name)
