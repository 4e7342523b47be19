"""Loops beside a connection, a source or a task that has ended: each of them ends with an error
that says so, or waits; none turns on a core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ended import (
    NOWHERE,
    Loop,
    digits,
    end_idle,
    ended_client,
    node_of,
    none_turn,
    serve_digits,
)
from support.waiting import GENEROUS

import swarm
from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.up.kept_model import KeptModel
from nodes.up.server_report import ServerReport
from swarm.errors import LinkEnded, Status
from swarm.fleet.events import keep_events
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.fleet.service import FleetWatch
from swarm.gossip import LAN
from swarm.transport.lane.consumer import Lane


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


# --- a node ----------------------------------------------------------------------------------


@pytest.fixture
async def mesh(url: str) -> AsyncIterator[swarm.Mesh]:
    """With a model that serves."""
    async with swarm.connect(url) as client:
        await serve_digits(client)
        yield client


async def test_a_node_that_waits_for_a_server_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = node_of("shard-1", NOWHERE)

    def defect(first: str = "") -> list[str]:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(node.mesh.link.servers, "in_turn", defect)
    async with asyncio.timeout(GENEROUS):
        with pytest.raises(BaseExceptionGroup) as ended:
            await node.run(asyncio.Event())
    assert ZeroDivisionError in [type(error) for error in leaves(ended.value)]
    with pytest.raises(LinkEnded, match="ZeroDivisionError"):
        node.mesh.link.publish("subject")


async def test_a_wait_for_a_connection_that_has_ended_is_over_at_once() -> None:
    """It did not even let the loop look at the signal that would end it."""
    connection = Connection(NodeConfig("gateway", nats=NOWHERE))
    await connection.mesh.link.close()
    tasks: list[asyncio.Task[None]] = []

    def own(work: Any, name: str) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work, name=name))
        return tasks[-1]

    async with asyncio.timeout(GENEROUS):
        with pytest.raises(LinkEnded, match="it was closed"):
            await connection.connect(asyncio.Event(), own)
    with pytest.raises(LinkEnded):
        await tasks[0]


@pytest.mark.parametrize("role", ["shard-1", "gateway"])
async def test_a_node_that_serves_ends_with_its_connection_and_says_why(
    mesh: swarm.Mesh, url: str, role: str
) -> None:
    node = node_of(role, url)
    running = asyncio.create_task(node.run(asyncio.Event()))
    await asyncio.wait_for(node.became_ready.wait(), GENEROUS)
    await node.mesh.link.close()
    with pytest.raises(BaseExceptionGroup) as ended:
        await asyncio.wait_for(running, GENEROUS)
    assert [type(error) for error in leaves(ended.value)] == [LinkEnded]


async def test_no_part_of_any_node_turns_beside_a_connection_that_has_ended(
    mesh: swarm.Mesh, url: str
) -> None:
    roles = ("shard-1", "fallback", "standby", "gateway")
    await end_idle([node_of("shard-2", url, standby=True), *(node_of(role, url) for role in roles)])


# --- a client --------------------------------------------------------------------------------


async def test_each_call_of_a_client_whose_connection_has_ended_says_so_at_once() -> None:
    client = await ended_client()
    image = {"image": np.zeros((1, 1, 8, 8), np.float32)}
    result = await asyncio.wait_for(client.ask("digits", image, budget=60.0), GENEROUS)
    assert (result.status, "has ended" in result.message) == (Status.UNAVAILABLE, True)

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "ready": lambda: client.link.ready(60.0),
        "model": lambda: client.model("digits"),
        "sync": lambda: client.link.flush(60.0),
    }
    for call in calls.values():
        with pytest.raises(LinkEnded, match="has ended: it was closed"):
            await asyncio.wait_for(call(), GENEROUS)


# --- each loop by itself ----------------------------------------------------------------------


async def nothing() -> str:
    return ""


def lane(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    config = {"durable_name": "c", "filter_subject": "s", "ack_wait": 1_000_000_000}
    return Lane(client.link, "stream", config, nothing, lambda message: None).run()


async def fleet(client: swarm.Mesh, _: Path) -> None:
    async with FleetWatch(client.link, client.subjects) as watch:
        assert not await watch.until(lambda picture, now: bool(picture.nodes), 60.0)


def kept(client: swarm.Mesh, folder: Path) -> Awaitable[None]:
    result = digits()
    (folder / "manifest.json").write_bytes(result.manifest.to_json())
    for name, data in result.files.items():
        (folder / name).write_bytes(bytes(data))
    model = KeptModel(client, folder, lambda kind, detail: None)
    running = model.run()
    asyncio.get_running_loop().call_later(0.1, lambda: [on() for on in client.link.on_up])
    return running


LOOPS: dict[str, Loop] = {
    "tend": lambda client, _: client.tend(),
    "events": lambda client, _: keep_events(client.link, client.subjects),
    "gossip": lambda client, _: Membership(client.link, client.subjects, Peers("n1", LAN)).run(),
    "lane": lane,
    "fleet": fleet,
    "report": lambda client, _: ServerReport(client).run([]),
    "kept model": kept,
}


async def test_every_loop_beside_a_connection_that_has_ended_waits_or_ends(tmp_path: Path) -> None:
    await none_turn(LOOPS, tmp_path)
