"""Lanes, and requests, of users that may not make or read what they use."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest
from real_server import Links
from rights_users import files, issued
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import PermissionDenied
from swarm.link import Link, LinkOptions
from swarm.mesh import Mesh
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf
from swarm.subjects import Subjects
from swarm.transport.lane import (
    Lane,
    LaneMessage,
    LaneOptions,
    consumer_config,
    ensure_lanes,
    make_lanes,
)
from swarm.wire.messages import Request, Result

pytestmark = pytest.mark.integration

SUBJECTS = Subjects("default")
OPTIONS = LaneOptions(ack_wait=0.5)


Rights = tuple[EmbeddedServer, Authority]


@pytest.fixture
async def rights(tmp_path: Path, links: Links) -> Rights:
    authority = issued(tmp_path / "auth", ["operator", "requester", "client", "shard-1", "shard-2"])
    return await links.server(operator_conf(authority, str(tmp_path / "jwt"))), authority


async def connect(links: Links, rights: Rights, user: str) -> Link:
    return await links.connect(rights[0].url, **files(rights[1], user, plain=False))


def violations(server: EmbeddedServer) -> list[str]:
    return [line for line in server.log.splitlines() if "Violation" in line]


async def test_a_node_uses_the_lane_that_an_operator_makes_and_says_what_it_waits_for(
    links: Links, rights: Rights, caplog: pytest.LogCaptureFixture
) -> None:
    operator = await connect(links, rights, "operator")
    node = await connect(links, rights, "shard-2")
    sender = await connect(links, rights, "shard-1")
    received: list[LaneMessage] = []

    async def provision() -> None:
        await ensure_lanes(node, SUBJECTS, "digits", "1", 3, OPTIONS)

    lane = Lane(
        node,
        SUBJECTS.stream("digits", "1", 2),
        consumer_config(SUBJECTS, "digits", "1", 2, OPTIONS),
        provision,
        received.append,
    )
    with caplog.at_level(logging.WARNING, "swarm.transport.lane"):
        running = asyncio.create_task(lane.run())
        await eventually(lambda: "swarm model push" in caplog.text)
    await make_lanes(operator, SUBJECTS, "digits", "1", 3, OPTIONS)
    await lane.ready(10.0)
    sender.publish(SUBJECTS.features("digits", "1", 2), b"work")
    await eventually(lambda: received != [])
    assert received[0].ack()
    await lane.set_ack_wait(2.0)
    assert lane.ack_wait == pytest.approx(0.5), "as the operator set it"
    await node.flush()
    assert violations(rights[0]) == []
    await lane.drain()
    await running


async def test_a_client_asks_the_service_by_itself_and_tries_nothing_else(
    links: Links, rights: Rights
) -> None:
    server, authority = rights
    node = await connect(links, rights, "shard-1")
    asked: list[Request] = []

    def answer(message: object) -> None:
        request = Request.decode(message.data)  # type: ignore[attr-defined]
        asked.append(request)
        result = Result(request.id, "digits", "1", outputs={"y": np.ones(1, np.float32)})
        node.publish(message.reply, result.parts())  # type: ignore[attr-defined]

    node.subscribe(SUBJECTS.infer("digits"), answer, "q")
    await node.flush()
    options = LinkOptions(servers=(server.url,), credentials=str(authority.credentials("client")))
    async with Mesh(options) as client:
        result = await client.infer("digits@1", {"x": np.zeros(1, np.float32)}, 5.0)
        assert result.outputs["y"] == 1
        assert asked[0].version == "1"
        with pytest.raises(PermissionDenied, match=r"infer\.other"):
            await client.infer("other", {"x": np.zeros(1, np.float32)}, 5.0)
    assert [line for line in violations(server) if "infer.other" not in line] == []
