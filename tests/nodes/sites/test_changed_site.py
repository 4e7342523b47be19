"""What changes a site's store keeps what it was not asked to change."""

from __future__ import annotations

import pytest
from support.changed_streams import Operations, check, command, kept

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.sites.store import SiteStore, StoreLimits
from swarm.sites.subjects import SiteSubjects

pytestmark = pytest.mark.integration

SITE = "hub"


async def prepare(mesh: swarm.Mesh) -> None:
    await SiteStore(mesh.link, mesh.subjects, SITE).prepare(StoreLimits())


OPERATIONS: Operations = {
    "site add": (lambda made: command(made, "site", "add", SITE), lambda made: {}),
    "site bytes": (
        lambda made: command(made, "site", "add", SITE, "--max-mb", "5"),
        lambda made: {
            name: {"max_bytes": 5_000_000}
            for name in (
                SiteSubjects.of(made.mesh.subjects).submitted_stream,
                SiteSubjects.of(made.mesh.subjects).answers_stream,
            )
        },
    ),
}


async def test_each_change_keeps_what_it_was_not_asked_to_change() -> None:
    async with EmbeddedServer(domain=SITE) as server, kept(server.url, 1, prepare) as made:
        await check(made, OPERATIONS)
