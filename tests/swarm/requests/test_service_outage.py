"""A session keeps the weights that it has seen through an outage of the `infer` service."""

from __future__ import annotations

import numpy as np
import pytest
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import Status
from swarm.link import Link, LinkMessage
from swarm.requests.by_service import ServiceRequester
from swarm.requests.sessions import FAILURES, SeenWeights
from swarm.subjects import Subjects
from swarm.wire.messages import Request, Result

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")
KEY = ("m", "", "agent", "s1")
INPUTS = {"x": np.zeros(1, np.float32)}


async def failures(link: Link, seen: SeenWeights) -> set[Status]:
    requester = ServiceRequester(link, SUBJECTS, seen, "agent")
    request = Request(INPUTS, "r", session="s1")
    asked = [await requester.ask("m", request, 30.0) for _ in range(FAILURES + 1)]
    return {result.status for result in asked}


@pytest.fixture
def seen() -> SeenWeights:
    seen = SeenWeights()
    seen.saw(KEY, 5)
    return seen


async def test_a_session_does_not_go_back_because_no_node_served_for_a_while(
    server: EmbeddedServer, links: Links, seen: SeenWeights
) -> None:
    assert await failures(await links.connect(server.url), seen) == {Status.UNAVAILABLE}
    assert seen.least(KEY) == 5


async def test_a_session_goes_back_from_weights_that_nodes_answer_not_to_have(
    server: EmbeddedServer, links: Links, seen: SeenWeights
) -> None:
    node = await links.connect(server.url)

    def refuse(message: LinkMessage) -> None:
        node.publish(message.reply, Result("r", "m", status=Status.UNAVAILABLE).parts())

    node.subscribe(SUBJECTS.infer("m"), refuse)
    await node.flush()
    assert await failures(await links.connect(server.url), seen) == {Status.UNAVAILABLE}
    assert seen.least(KEY) == 0


async def test_a_request_that_a_node_swallows_is_asked_again_with_its_id(
    server: EmbeddedServer, links: Links
) -> None:
    node = await links.connect(server.url)
    asked: list[Request] = []

    def answer_the_second(message: LinkMessage) -> None:
        asked.append(Request.decode(message.data))
        if len(asked) == 2:
            node.publish(message.reply, Result(asked[0].id, "m").parts())

    node.subscribe(SUBJECTS.infer("m"), answer_the_second)
    await node.flush()
    requester = ServiceRequester(await links.connect(server.url), SUBJECTS, SeenWeights(), "agent")
    result = await requester.ask("m", Request(INPUTS, "r"), 2.0)
    assert (result.status, [request.id for request in asked]) == (Status.OK, ["r", "r"])
    assert asked[1].budget is not None
    assert asked[1].budget < 2.0
