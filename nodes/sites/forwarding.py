"""A gateway forwards what sites have stored."""

from __future__ import annotations

import asyncio
from typing import Any

from nodes.feature import Part, Surroundings
from nodes.sites.settings import SiteOptions
from swarm.sites.forwarder import Forwarder


class ForwardingPart(Part):
    """One forwarder for each site of `--site`."""

    name = "sites"

    def __init__(self, around: Surroundings) -> None:
        mesh = around.connection.mesh
        self._forwarders = [
            Forwarder(mesh.link, mesh.subjects, site, around.answer)
            for site in around.connection.config.of(SiteOptions).sites
        ]

    async def run(self) -> None:
        """Forward until cancelled."""
        async with asyncio.TaskGroup() as group:
            for forwarder in self._forwarders:
                group.create_task(forwarder.run(), name=f"site {forwarder.site}")

    def status(self) -> dict[str, Any]:
        """How each site stands."""
        return {"sites": {each.site: each.status() for each in self._forwarders}}
