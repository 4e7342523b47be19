"""Processes of one host hand messages over directly, and with nothing lost by it.

How often they do is no promise: a process that stands still for some milliseconds makes its peers
store. So these tests wait for messages that were handed over.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.meshes import (
    LOOPBACK,
    READY,
    add_model,
    all_ready,
    as_found,
    close,
    digits,
    dismiss,
    mesh_of,
    sockets,
    split_digits,
)
from support.waiting import eventually
from zoo.chain import chain, chain_cuts, chain_expected

import swarm
from nodes.up.mesh import LocalMesh, push
from shards.split.split import split
from swarm.model import ModelInfo
from swarm.samehost.memory import unavailable
from swarm.transport.lane import lane_streams

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
ROLES = ("shard-1", "shard-2", "shard-3")
BUDGET = 30.0  # seconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def near_mesh() -> AsyncIterator[LocalMesh]:
    async with mesh_of(split_digits(), *ROLES, "fallback") as local:
        yield local


@pytest_asyncio.fixture(loop_scope="module")
async def near(near_mesh: LocalMesh) -> AsyncIterator[LocalMesh]:
    """Client and nodes know that all of them are on one host. Left as it was found."""
    async with as_found(near_mesh):
        await eventually(lambda: one_is_handed_over(near_mesh), "all are near", READY)
        yield near_mesh
        assert near_mesh.mesh.link.callback_errors == 0


def statuses(local: LocalMesh) -> list[dict[str, Any]]:
    """Of the processes that run: a node that was killed has said that it is ready, and no more."""
    return [status for node in local.supervisor.nodes if (status := local.status_of(node))]


async def counters(local: LocalMesh, name: str) -> dict[str, int]:
    """By role, as of now."""
    present = statuses(local)
    for status in present:
        status["at"] = ""
    local.mesh.link.publish(local.mesh.subjects.status_request)
    nodes = [status["node"] for status in present]
    await eventually(lambda: all(local.statuses[node]["at"] for node in nodes), "the statuses")
    return {
        (status := local.statuses[node])["role"]: sum(
            stage["counters"][name] for stage in status["stages"]
        )
        for node in nodes
    }


async def ask(local: LocalMesh, number: int = 0, **options: Any) -> swarm.Result:
    images, logits = digits()
    feeds = {"image": images[number : number + 1]}
    result = await local.mesh.infer("digits", feeds, BUDGET, **options)
    assert close(result.outputs["logits"], logits[number : number + 1])
    return result


async def one_is_handed_over(local: LocalMesh) -> bool:
    """Whether a request, and its results, are handed over all the way."""
    return await nothing_is_stored(local, lambda: ask(local))


async def nothing_is_stored(
    local: LocalMesh,
    asking: Callable[[], Awaitable[object]],
    model: str = "digits",
    most: int = 0,
) -> bool:
    """Whether requests are answered and no more than so many messages stored on their way."""
    before, sent = await stored(local, model), local.mesh.socket.sent
    await asking()
    is_direct = local.mesh.socket.sent > sent or model != "digits"
    return is_direct and await stored(local, model) - before <= most


def rest(local: LocalMesh) -> None:
    """Let the client be as after 5 s without a request."""
    local.mesh.statuses.rest()
    local.mesh.placement.forget()


def remembered(local: LocalMesh) -> set[str]:
    """The inboxes of the nodes that the client knows of."""
    serving = local.mesh.statuses.serving
    return {peer.inbox for stage in (1, 2, 3) for peer in serving("digits", "1", stage)}


async def stored(local: LocalMesh, model: str = "digits") -> int:
    """Messages that were ever stored in the lanes."""
    found = await lane_streams(local.mesh.link, local.mesh.subjects, model, "1")
    return sum(int(info["state"]["last_seq"]) for info in found)


@pytest.mark.parametrize("together", [1, 40], ids=["one at a time", "forty at a time"])
async def test_messages_that_are_handed_over_are_not_stored(near: LocalMesh, together: int) -> None:
    """From the requester to the first stage, and from stage to stage."""
    taken, handed = await counters(near, "taken"), await counters(near, "handed_over")
    received = near.mesh.socket.received

    async def some() -> None:
        results = await asyncio.gather(*(ask(near, number) for number in range(together)))
        assert all([hop.stage for hop in result.hops] == [1, 2, 3] for result in results)

    # Of three messages a request, of forty at once, two in three are handed over.
    await eventually(
        lambda: nothing_is_stored(near, some, most=0 if together == 1 else together),
        f"{together} at a time are handed over",
    )
    assert near.mesh.socket.received > received
    taken_now, handed_now = await counters(near, "taken"), await counters(near, "handed_over")
    assert all(taken_now[role] > taken[role] for role in ROLES)
    assert [handed_now[role] > handed[role] for role in ROLES] == [True, True, False]


async def test_over_second_connections_of_one_host_requests_are_answered_without_the_server(
    near: LocalMesh,
) -> None:
    """Neither a lane nor the inbox of the second connection brings what the socket can."""
    model = split(
        chain(3, 64_000), name="chain", cuts=chain_cuts(3), bandwidth=LOOPBACK, profile=False
    )
    assert ModelInfo.from_manifest(model.manifest.to_json()).is_large
    features = np.ones((1, 16_000), np.float32)
    expected = chain_expected(features, 3)
    await push(near, model.manifest.to_json(), model.files)
    nodes = [near.start(role, "chain", "--two-connections", "on") for role in ROLES]
    await near.ready(READY)
    async with swarm.connect(near.url, near.name, two_connections="on") as client:
        inbox = client.bulk.options.inbox
        assert inbox in sockets()
        by_server: list[str] = []
        near.mesh.link.subscribe(f"{inbox}.*", lambda m: by_server.append(m.subject))
        await near.mesh.link.flush()

        async def ask_once() -> None:
            result = await client.infer("chain", {"features": features}, BUDGET)
            assert np.array_equal(result.outputs["result"], expected)

        async def is_direct() -> bool:
            by_server.clear()
            received = client.socket.received
            untouched = await nothing_is_stored(near, ask_once, "chain")
            await near.mesh.link.flush()
            return untouched and not by_server and client.socket.received > received

        await eventually(is_direct, "a request that the server does not see")
        assert client.requester.retries == 0
    assert inbox not in sockets()
    await dismiss(near, nodes)


async def test_messages_in_the_lanes_do_not_keep_the_later_ones_there(near: LocalMesh) -> None:
    """A new client knows no node at first; its runs take 10 ms, eight at a time without a pause."""
    model = chain(3, 1 << 20, work=90)
    split_chain = split(model, name="busy", cuts=chain_cuts(3), bandwidth=LOOPBACK, profile=False)
    features = np.ones((1, 1 << 18), np.float32)
    expected = chain_expected(features, 3, work=90)
    nodes = await add_model(near, split_chain, *ROLES)
    over, answered = asyncio.Event(), 0
    async with swarm.connect(near.url, near.name) as client:

        async def keep_asking() -> None:
            nonlocal answered
            while not over.is_set():
                result = await client.infer("busy", {"features": features}, BUDGET)
                assert np.array_equal(result.outputs["result"], expected)
                answered += 1

        async def many() -> None:
            begin = answered
            await eventually(lambda: answered >= begin + 24, "answers")

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(keep_asking())
            try:
                await eventually(
                    lambda: nothing_is_stored(near, many, "busy", most=24),
                    "of 24 requests, three stages each, two in three are handed over",
                )
            finally:
                over.set()
        assert client.requester.retries == 0
    await dismiss(near, nodes)


async def test_a_client_that_has_rested_remembers_where_nodes_are(near: LocalMesh) -> None:
    async def first_is_direct() -> bool:
        rest(near)
        return await one_is_handed_over(near)

    await eventually(first_is_direct, "the first request after a rest is handed over")


async def test_a_node_that_ended_while_its_client_rested_loses_it_nothing(
    near: LocalMesh,
) -> None:
    """Its socket stays until the next process starts."""
    victim = next(node for node in near.supervisor.nodes if node.role == "shard-1")
    rest(near)
    old = str((near.status_of(victim) or {})["inbox"])
    victim.wanted = False
    victim.signal(signal.SIGKILL)
    try:
        await eventually(lambda: not victim.alive, "the node ends")
        assert old in remembered(near), "the client has not heard of it"
        result = await ask(near, 1)
        assert result.hops[0].node.startswith("fallback")
        assert remembered(near)
        assert old not in remembered(near)
        async with swarm.connect(near.url, near.name):  # if not another one on this host before
            await eventually(lambda: old not in sockets(), "the next process removes it")
    finally:
        victim.start()
        victim.wanted = True


async def test_in_fast_mode_the_stages_of_one_host_need_no_server_between_them(
    near: LocalMesh,
) -> None:
    seen: list[str] = []
    near.mesh.link.subscribe(
        f"{near.mesh.subjects.root}.fresh.>", lambda message: seen.append(message.subject)
    )

    async def is_direct() -> bool:
        seen.clear()
        await ask(near, delivery="fast")
        await near.mesh.link.flush()
        return not seen

    await eventually(is_direct, "a request that the server does not see")


@pytest.mark.parametrize(
    ("roles", "number"),
    [
        (ROLES[:1], signal.SIGKILL),
        (ROLES, signal.SIGKILL),
        (ROLES[:1], signal.SIGSTOP),
        (ROLES[2:], signal.SIGSTOP),
    ],
    ids=["first killed", "all killed", "first stopped", "last stopped"],
)
async def test_nodes_that_end_with_lone_requests_in_hand_lose_nothing(
    near: LocalMesh, roles: tuple[str, ...], number: signal.Signals
) -> None:
    """In the midst of lone requests, twice: each is answered rightly."""
    victims = [node for node in near.supervisor.nodes if node.role in roles]
    over = asyncio.Event()
    answered, retries = 0, near.mesh.requester.retries

    async def stream() -> None:
        nonlocal answered
        while not over.is_set():
            await ask(near, answered % 50)
            answered += 1

    async def more(count: int) -> None:
        begin = answered
        await eventually(lambda: answered > begin + count, f"{count} answers", READY)

    async with asyncio.TaskGroup() as group:
        group.create_task(stream())
        try:
            for calm in (23, 37):
                await more(calm)
                for victim in victims:
                    victim.signal(number)
                await more(20)
                for victim in victims:
                    victim.signal(signal.SIGCONT)
                await all_ready(near)
        finally:
            over.set()
    assert near.mesh.requester.retries == retries, "the lanes did it"


async def test_status_says_where_a_node_is_reached_and_its_priority(near: LocalMesh) -> None:
    told = {s["role"]: (s["inbox"][:7], s["priority"]) for s in statuses(near)}
    assert told == dict.fromkeys(ROLES, ("_INBOX.", 0)) | {"fallback": ("_INBOX.", 2)}
