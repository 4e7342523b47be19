"""A client of another account than the mesh's, which imports the service alone, is a simple one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from real_server import Links, cut
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ApiError
from swarm.link import Link
from swarm.requests.infer_service import InferService
from swarm.wire.messages import Request, Result

pytestmark = pytest.mark.integration

ACCOUNTS = """
accounts {
  MESH {
    jetstream: enabled
    users: [ { user: node, password: n } ]
    exports: [ { service: "swarm.default.infer.*" } ]
  }
  APP {
    JETSTREAM
    users: [ { user: app, password: a } ]
    imports: [ { service: { account: MESH, subject: "swarm.default.infer.*" } } ]
  }
}
"""
X = {"x": np.ones((1, 4), np.float32)}
AT_ONCE = 1.0  # seconds: no budget and no timeout is waited for


@pytest.fixture(params=["", "jetstream: enabled"], ids=["no JetStream", "JetStream of its own"])
async def two_accounts(request: pytest.FixtureRequest, links: Links) -> str:
    """A server whose users `node` and `app` have an account each."""
    return (await links.server(ACCOUNTS.replace("JETSTREAM", request.param))).url


async def serving(links: Links, url: str) -> tuple[Link, list[Request]]:
    asked: list[Request] = []

    async def answer(model: str, request: Request) -> Result:
        asked.append(request)
        return Result(request.id, model, "1", outputs=dict(request.inputs))

    link = await links.connect(url, user="node", password="n")
    InferService(link, "swarm-default", "1.0.0", {}, ["swarm.default.infer.m"], answer).start()
    await link.flush()
    return link, asked


async def test_it_asks_the_service_in_each_way_and_again_after_a_reconnect(
    two_accounts: str, links: Links
) -> None:
    _, asked = await serving(links, two_accounts)
    async with swarm.connect(two_accounts, user="app", password="a", agent="me") as mesh:
        for options in ({}, {"version": "7"}, {"session": "s"}, {"delivery": "fast"}):
            async with asyncio.timeout(AT_ONCE):
                result = await mesh.infer("m", X, **options)  # type: ignore[arg-type]
            assert result.outputs["x"].tolist() == [[1.0] * 4]
        assert [request.version for request in asked] == ["", "7", "", ""]
        assert {request.agent for request in asked} == {"me"}
        ups = mesh.link.reconnects
        cut(mesh.link)
        await eventually(lambda: mesh.link.reconnects > ups and mesh.link.connected)
        async with asyncio.timeout(AT_ONCE):
            await mesh.infer("m", X)


async def test_what_it_cannot_do_is_a_typed_error_at_once(two_accounts: str, links: Links) -> None:
    await serving(links, two_accounts)
    async with swarm.connect(two_accounts, user="app", password="a", agent="me") as mesh:
        async with asyncio.timeout(AT_ONCE):
            with pytest.raises((swarm.Unavailable, swarm.NotFound, ApiError)):
                await mesh.infer("unserved", X)
            with pytest.raises((ApiError, swarm.NotFound)):
                await mesh.model("m")
            pytest.importorskip("swarm.sites")
            with pytest.raises(swarm.Unavailable, match="away"):
                await mesh.submit("m", X, site="hub")
            with pytest.raises(swarm.Unavailable, match="away"):
                await anext(mesh.results(site="hub", follow=False))


async def test_an_unknown_model_of_the_own_mesh_is_not_asked_for_at_the_service(
    server: EmbeddedServer, links: Links
) -> None:
    """It has a registry, which says that there is no such model."""
    async with swarm.connect(server.url) as mesh:
        await mesh.registry.prepare()
        link = await links.connect(server.url)
        heard: list[object] = []
        link.subscribe("swarm.default.infer.*", heard.append)
        await link.flush()
        with pytest.raises(swarm.NotFound):
            await mesh.infer("unknown", X)
        await link.flush()
    assert heard == []
