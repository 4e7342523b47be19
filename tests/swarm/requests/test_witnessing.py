"""Two nodes that answer, on a real server: what one of them swallows, the other answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.fleet.advertised import ANSWERS
from swarm.gossip import PeerView
from swarm.link import Link
from swarm.requests.infer_service import InferService
from swarm.requests.witnessing import Notices, Witnessing
from swarm.subjects import Subjects
from swarm.wire.messages import Request, Result

SUBJECTS = Subjects("witnessed")
SUBJECT = SUBJECTS.infer("digits")
BODY = b"".join(Request({"x": np.ones(1, np.float32)}).parts())


def view(*nodes: str) -> Mapping[str, PeerView]:
    said = {ANSWERS: ("digits", True), "role": "fallback"}
    return {node: PeerView(node, "alive", 1, 1, said) for node in nodes}


@dataclass
class Node:
    """One that answers, and looks after the others."""

    name: str
    link: Link
    service: InferService
    witnessing: Witnessing
    asked: list[float | None]

    @property
    def is_witness(self) -> bool:
        return self.witnessing.is_ready


@asynccontextmanager
async def answering(links: Links, url: str, *names: str) -> AsyncIterator[list[Node]]:
    """Each node's answer names it."""
    made, tasks = [], []
    for name in names:
        link = await links.connect(url)
        asked: list[float | None] = []

        async def answer(
            model: str, request: Request, name: str = name, asked: list[float | None] = asked
        ) -> Result:
            asked.append(request.budget)
            return Result(request.id, model, message=name)

        notices = Notices(link, SUBJECTS, name)
        service = InferService(link, name, "1.0.0", {}, [SUBJECT], answer, notices)
        witnessing = Witnessing(
            link.options, SUBJECTS, name, lambda: view(*names), {"infer": service.take}
        )
        service.start()
        tasks.append(asyncio.create_task(witnessing.run()))
        made.append(Node(name, link, service, witnessing, asked))
    try:
        await eventually(lambda: all(node.is_witness for node in made), "both are witnesses")
        yield made
    finally:
        for node in made:
            await node.service.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def swallow(links: Links, url: str) -> Link:
    """A member of the queue group that hangs: it is given requests, and does nothing."""
    link = await links.connect(url)
    link.subscribe(SUBJECT, lambda message: None, "q")
    await link.flush()
    return link


async def test_what_a_member_that_hangs_is_given_is_answered_by_a_witness_once(
    server: EmbeddedServer, links: Links
) -> None:
    async with answering(links, server.url, "a", "b") as nodes:
        await swallow(links, server.url)
        client = await links.connect(server.url)
        answers = await asyncio.gather(*(client.request(SUBJECT, BODY, 20.0) for _ in range(40)))
        assert len(answers) == 40
        assert sum(node.witnessing.taken for node in nodes) > 0
        # What a witness answers has the rest of its budget.
        rest = [budget for node in nodes for budget in node.asked if budget is not None]
        assert rest
        assert all(0 < budget < 5.0 for budget in rest)


async def test_what_living_nodes_answer_no_witness_answers_again(
    server: EmbeddedServer, links: Links
) -> None:
    async with answering(links, server.url, "a", "b") as nodes:
        client = await links.connect(server.url)
        for _ in range(20):
            await asyncio.gather(*(client.request(SUBJECT, BODY, 20.0) for _ in range(10)))
        await eventually(lambda: not any(n.witnessing.held for n in nodes), "all copies are gone")
        assert sum(len(node.asked) for node in nodes) == 200
        assert [node.witnessing.taken for node in nodes] == [0, 0]


@pytest.mark.parametrize("reply", ["", "_INBOX.one"])
async def test_a_client_with_one_inbox_or_none_costs_nobody_an_answer(
    server: EmbeddedServer, links: Links, reply: str
) -> None:
    """Requests with one reply subject are told apart by what they ask."""
    async with answering(links, server.url, "a", "b") as nodes:
        client = await links.connect(server.url)
        heard: list[bytes] = []
        client.subscribe("_INBOX.one", lambda message: heard.append(bytes(message.data)))
        await client.flush()
        for number in range(30):
            body = b"".join(Request({"x": np.ones(1, np.float32)}, f"r{number}").parts())
            client.publish(SUBJECT, body, reply)
        await eventually(lambda: sum(len(n.asked) for n in nodes) >= 30, "all are asked")
        await eventually(lambda: len(heard) >= (30 if reply else 0), "all are answered")
        await eventually(lambda: not any(n.witnessing.held for n in nodes), "all copies are gone")
        assert [node.witnessing.taken for node in nodes] == [0, 0]
