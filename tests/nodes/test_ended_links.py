"""Loops beside a connection, a source or a task that has ended: each of them ends with an error
that says so, or waits; none turns on a core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.waiting import GENEROUS

import swarm
from nodes.auto.own_link import OwnLink
from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.life.node import Node
from nodes.records.settings import AuditOptions
from nodes.sites.settings import SiteOptions
from nodes.up.kept_model import KeptModel
from nodes.up.server_report import ServerReport
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.top.rollouts import RolloutWatch
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.errors import LinkEnded, Status, SwarmError
from swarm.fleet.events import keep_events
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.fleet.service import FleetWatch
from swarm.gossip import LAN
from swarm.records.record import Entry
from swarm.records.recorder import Recorder
from swarm.sites.forwarder import Forwarder
from swarm.transport.lane.consumer import Lane

NOWHERE = "nats://127.0.0.1:9"
MOST_OF_A_CORE = 0.25  # a loop without a pause takes all that there is; an idle node a hundredth
WATCHED_FOR = 0.6  # seconds


@cache
def digits() -> SplitResult:
    return split(digits_model(), name="digits", version="1", stages=2, profile=False)


async def share_of_a_core(seconds: float = WATCHED_FOR) -> float:
    """Of this thread, while others of its tasks run."""
    began = time.thread_time()
    await asyncio.sleep(seconds)
    return (time.thread_time() - began) / seconds


def node_of(role: str, url: str, **more: Any) -> Node:
    model = "" if role == "gateway" else "digits"
    settings = {"shm": False, "no_cache": True, "allow_unsigned": True} | more
    return Node(NodeConfig(role, model, nats=url, **settings))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


# --- a node ----------------------------------------------------------------------------------


@pytest.fixture
async def mesh(url: str) -> AsyncIterator[swarm.Mesh]:
    """With a model that serves."""
    async with swarm.connect(url) as client:
        result = digits()
        await client.registry.push(result.manifest.to_json(), result.files)
        await client.registry.promote("digits", "1")
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


ROLES: dict[str, dict[str, Any]] = {
    "shard-1": {"parts": (AuditOptions(audit=True),)},
    "shard-2": {"standby": True},
    "fallback": {},
    "standby": {},
    "auto": {},
    "gateway": {"parts": (SiteOptions(site="hub"),)},
}


async def test_no_part_of_any_node_turns_beside_a_connection_that_has_ended(
    mesh: swarm.Mesh, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that nodes do at once: they do not see here that their connections have ended."""

    async def unseen(self: Connection) -> None:
        await self.mesh.link.run()

    monkeypatch.setattr(Connection, "_run_link", unseen)
    stop = asyncio.Event()
    nodes = [node_of(role, url, **more) for role, more in ROLES.items()]
    running = [asyncio.create_task(each.run(stop)) for each in nodes]
    await asyncio.wait_for(asyncio.gather(*(each.became_ready.wait() for each in nodes)), GENEROUS)
    for each in nodes:
        await each.mesh.link.close()
    assert await share_of_a_core(1.0) < MOST_OF_A_CORE
    stop.set()
    await asyncio.wait_for(asyncio.gather(*running), GENEROUS)


# --- a client --------------------------------------------------------------------------------


async def ended_client() -> swarm.Mesh:
    client = swarm.connect(NOWHERE)
    await client.link.close()
    return client


async def test_each_call_of_a_client_whose_connection_has_ended_says_so_at_once() -> None:
    client = await ended_client()
    image = {"image": np.zeros((1, 1, 8, 8), np.float32)}
    result = await asyncio.wait_for(client.ask("digits", image, budget=60.0), 5.0)
    assert (result.status, "has ended" in result.message) == (Status.UNAVAILABLE, True)

    async def results() -> None:
        async for _ in client.results("robot-7", site="hub"):
            raise AssertionError("an answer from nowhere")

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "ready": lambda: client.link.ready(60.0),
        "model": lambda: client.model("digits"),
        "results": results,
        "tokens": lambda: tokens(client, Path()),
        "sync": lambda: client.link.flush(60.0),
    }
    for call in calls.values():
        with pytest.raises(LinkEnded, match="has ended: it was closed"):
            await asyncio.wait_for(call(), 5.0)


# --- each loop by itself ----------------------------------------------------------------------


Loop = Callable[[swarm.Mesh, Path], Awaitable[Any]]


async def tokens(client: swarm.Mesh, _: Path) -> None:
    async for _token in client.generate("llm", [1, 2, 3], budget=60.0):
        raise AssertionError("a token from nowhere")


async def nothing() -> str:
    return ""


def lane(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    config = {"durable_name": "c", "filter_subject": "s", "ack_wait": 1_000_000_000}
    return Lane(client.link, "stream", config, nothing, lambda message: None).run()


async def fleet(client: swarm.Mesh, _: Path) -> None:
    async with FleetWatch(client.link, client.subjects) as watch:
        assert not await watch.until(lambda picture, now: bool(picture.nodes), 60.0)


def recorded(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    recorder = Recorder(client.link, client.subjects, "n1", lambda text: None)
    recorder.offer(Entry("act", "a", 1.0))
    return recorder.run()


def kept(client: swarm.Mesh, folder: Path) -> Awaitable[None]:
    result = digits()
    (folder / "manifest.json").write_bytes(result.manifest.to_json())
    for name, data in result.files.items():
        (folder / name).write_bytes(bytes(data))
    model = KeptModel(client, folder, lambda kind, detail: None)
    running = model.run()
    asyncio.get_running_loop().call_later(0.1, lambda: [on() for on in client.link.on_up])
    return running


def dashboard(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    events = asyncio.Event(), asyncio.Event()
    source = MeshSource(client.link.options, PageState("default"), *events)

    async def run() -> None:
        await source.link.close()
        await source.run()

    return run()


LOOPS: dict[str, Loop] = {
    "tend": lambda client, _: client.tend(),
    "tokens": tokens,
    "events": lambda client, _: keep_events(client.link, client.subjects),
    "audit": recorded,
    "gossip": lambda client, _: Membership(client.link, client.subjects, Peers("n1", LAN)).run(),
    "lane": lane,
    "fleet": fleet,
    "site": lambda client, _: Forwarder(client.link, client.subjects, "hub", client.ask).run(),
    "own link": lambda client, _: OwnLink(lambda: client.link).run(),
    "rollouts": lambda client, _: RolloutWatch(
        client.link, client.subjects, client.registry, lambda: ["digits"]
    ).run(),
    "report": lambda client, _: ServerReport(client).run([]),
    "kept model": kept,
    "dashboard": dashboard,
}


async def test_every_loop_beside_a_connection_that_has_ended_waits_or_ends(tmp_path: Path) -> None:
    async def begun(names: Iterable[str]) -> list[asyncio.Future[Any]]:
        client = await ended_client()
        return [asyncio.ensure_future(LOOPS[name](client, tmp_path)) for name in names]

    async def ended(running: list[asyncio.Future[Any]]) -> None:
        for each in running:
            each.cancel()
        for end in await asyncio.gather(*running, return_exceptions=True):
            assert end is None or isinstance(end, SwarmError | asyncio.CancelledError), end

    running = await begun(LOOPS)
    share = await share_of_a_core()
    await ended(running)
    if share >= MOST_OF_A_CORE:  # which one?
        for name in LOOPS:
            running = await begun([name])
            assert await share_of_a_core() < MOST_OF_A_CORE, name
            await ended(running)
    assert share < MOST_OF_A_CORE
