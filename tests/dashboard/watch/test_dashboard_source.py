"""Where the dashboard's picture comes from: a real server, and a node that answers for a fleet."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from support.meshes import split_digits
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.kept_model import push_to_serve
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from swarm.fleet.service import ANSWER_WITHIN, FleetAnswers
from swarm.fleet.status_interval import SMALL_FLEET, asked_within
from swarm.gossip import PeerView
from swarm.link import Link, LinkOptions
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("default")
VALUES = {"role": "shard-1", "priority": 0, "host": "h", "draining": False}


async def requests_heard(url: str, count: int) -> list[float]:
    """The times of the status requests of a dashboard that comes to a fleet of so many nodes."""
    view = {f"n{n:03d}": PeerView(f"n{n:03d}", "alive", 1, 1, VALUES) for n in range(count)}
    options = LinkOptions(servers=(url,))
    node = Link(options)
    asked: list[float] = []
    knows, state = asyncio.Event(), PageState("default")
    source = MeshSource(options, state, knows, asyncio.Event())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(source.link.close)
        stack.push_async_callback(node.close)
        running = asyncio.create_task(node.run())
        stack.callback(running.cancel)
        await node.ready(GENEROUS)
        node.subscribe(SUBJECTS.status_request, lambda m: asked.append(asked_within(m.data)))
        FleetAnswers(node, SUBJECTS, "n000", lambda: view).start()
        await node.flush()
        reading = asyncio.create_task(source.run())
        stack.callback(reading.cancel)
        async with asyncio.timeout(GENEROUS):
            while len(state.fleet.nodes) < count:
                knows.clear()
                await knows.wait()
        await source.link.flush()  # behind the last page follows the request, if any
        await node.flush()
    return asked


async def test_a_dashboard_asks_a_large_fleet_for_all_statuses_and_a_small_one_for_none() -> None:
    async with EmbeddedServer() as server:
        assert await requests_heard(server.url, SMALL_FLEET) == []
        assert await requests_heard(server.url, 250) == [ANSWER_WITHIN]


async def test_a_model_that_serves_and_has_no_node_is_told_before_any_node_speaks() -> None:
    async with EmbeddedServer() as server:
        options = LinkOptions(servers=(server.url,))
        knows, state = asyncio.Event(), PageState("default")
        source = MeshSource(options, state, knows, asyncio.Event())
        result = split_digits()
        async with AsyncExitStack() as stack:
            mesh = await stack.enter_async_context(swarm.connect(server.url))
            stack.push_async_callback(source.link.close)
            reading = asyncio.create_task(source.run())
            stack.callback(reading.cancel)
            await source.link.ready(GENEROUS)
            await push_to_serve(mesh, result.manifest.to_json(), result.files, lambda size: None)

            def text() -> str:
                return str(state.whole(time.monotonic())["verdict"]["text"])

            wanted = "digits, stage 1: no node serves it (and 2 more)"
            await eventually(lambda: text() == wanted, "the stages without nodes are told")
