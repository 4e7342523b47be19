"""Who may do what at a site: users with the rights of their roles, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import PermissionDenied
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf
from swarm.sites.forwarder import Forwarder
from swarm.sites.store import SiteStore, StoreLimits
from swarm.wire.messages import Request, Result

pytestmark = pytest.mark.integration

SITE = "edge1"
INPUT = {"x": np.array([7], np.int64)}


def without_store(authority: Authority) -> Authority:
    """The account of a site's server has all streams itself: the store is the hub's alone."""
    path = authority.directory / "authority.json"
    document = json.loads(path.read_text())
    del document["store"]
    path.write_text(json.dumps(document))
    return Authority(authority.directory)


@pytest.fixture
async def rights(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedServer, Authority]]:
    authority = without_store(Authority.create(tmp_path / "auth", "default"))
    for role in ("operator", "requester", "gateway", "dashboard", "shard-2"):
        authority.add(role, role, ["m"])
    conf = operator_conf(authority, str(tmp_path / "jwt"))
    async with EmbeddedServer(more=conf, domain=SITE) as server:
        yield server, authority


async def test_a_requester_submits_a_gateway_forwards_and_nobody_else_may(
    rights: tuple[EmbeddedServer, Authority],
) -> None:
    server, authority = rights

    def connect(role: str) -> swarm.Mesh:
        return swarm.connect(server.url, agent="a", credentials=str(authority.credentials(role)))

    async def ask(model: str, request: Request) -> Result:
        return Result(request.id, model, outputs={"y": request.inputs["x"] * 2})

    async with connect("operator") as operator, connect("gateway") as gateway:
        await SiteStore(operator.link, operator.subjects, SITE).prepare(StoreLimits())
        forwarder = Forwarder(gateway.link, gateway.subjects, SITE, ask)
        task = asyncio.create_task(forwarder.run())
        async with asyncio.timeout(30), connect("requester") as client:
            for _ in range(3):
                await client.submit("m", INPUT)
            answers = client.results()
            for _ in range(3):
                assert (await anext(answers)).result.outputs["y"] == [14]
            await answers.read()
            # It deletes what is answered, which is a right of its own.
            await eventually(lambda: forwarder.status()["waiting"] == 0)
            with pytest.raises(PermissionDenied):
                await client.submit("other", INPUT)
            with pytest.raises(PermissionDenied):
                await SiteStore(client.link, client.subjects, SITE).forget_requests(3)
            with pytest.raises(PermissionDenied):
                await SiteStore(client.link, client.subjects, SITE).answer("a", 4, 3, 0, [b""])
        for role in ("dashboard", "shard-2"):
            async with connect(role) as other:
                with pytest.raises(PermissionDenied):
                    await other.submit("m", INPUT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    violations = [line for line in server.log.splitlines() if "Violation" in line]
    assert len(violations) == 5, violations
