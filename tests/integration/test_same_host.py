"""Processes of one host hand messages over directly: sooner, and with nothing lost by it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import numpy as np
import pytest
from meshes import LOOPBACK, add_model, close, digits, emptied, split_digits, until

import swarm
from nodes.local.mesh import LocalMesh, local_mesh, push
from shards.split.split import split
from shards.zoo.chain import chain, chain_cuts, chain_expected
from swarm.link import jetstream
from swarm.local.socket_directory import VERSION
from swarm.model import ModelInfo
from swarm.shm import unavailable
from swarm.subjects import api

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
ROLES = ("shard-1", "shard-2", "shard-3")


def sockets() -> set[str]:
    """Of this user's processes, living or not."""
    return set(os.listdir(f"/dev/shm/swarm.{os.geteuid()}.{VERSION}"))


async def counters(local: LocalMesh, name: str) -> dict[str, int]:
    """By role, as of now."""
    for status in local.statuses.values():
        status["at"] = ""
    local.mesh.link.publish(local.mesh.subjects.status_request)
    await until(lambda: all(s["at"] for s in local.statuses.values()), 5.0, "the statuses")
    return {
        s["role"]: sum(stage["counters"][name] for stage in s["stages"])
        for s in local.statuses.values()
    }


async def ask(local: LocalMesh, number: int, **options: Any) -> swarm.Result:
    images, logits = digits()
    feeds = {"image": images[number : number + 1]}
    result = await local.mesh.infer("digits", feeds, 5.0, **options)
    assert close(result.outputs["logits"], logits[number : number + 1])
    return result


def rest(local: LocalMesh) -> None:
    """Let the client be as after 5 s without a request."""
    local.mesh.statuses.rest()
    local.mesh.placement.forget()


def remembered(local: LocalMesh) -> set[str]:
    """The inboxes of the nodes that the client knows of."""
    serving = local.mesh.statuses.serving
    return {peer.inbox for stage in (1, 2, 3) for peer in serving("digits", "1", stage)}


async def known_near(local: LocalMesh) -> None:
    """Until the client and the nodes know that all of them are on one host."""
    async with asyncio.timeout(20):
        while True:
            await ask(local, 0)
            handed = await counters(local, "handed_over")
            if local.mesh.socket.sent and handed["shard-1"] and handed["shard-2"]:
                return


async def stored(local: LocalMesh, model: str = "digits") -> int:
    """Messages that were ever stored in the lanes."""
    name = local.mesh.subjects.stream(model, "1")
    info = await jetstream.call(local.mesh.link, api("STREAM.INFO", name))
    return int(info["state"]["last_seq"])


@pytest.mark.parametrize("together", [1, 40], ids=["one at a time", "forty at a time"])
async def test_messages_that_are_handed_over_are_not_stored(together: int) -> None:
    """From the requester to the first stage, and from stage to stage."""
    async with local_mesh() as local:
        await add_model(local, split_digits(), *ROLES)
        await known_near(local)
        for _ in range(5):  # a machine that stands still for a moment makes them store for a second
            before, direct = await stored(local), local.mesh.socket.received
            taken, handed = await counters(local, "taken"), await counters(local, "handed_over")
            for first in range(0, 120, together):
                asked = range(first % 50, first % 50 + together)
                results = await asyncio.gather(*(ask(local, number) for number in asked))
                assert [hop.stage for hop in results[0].hops] == [1, 2, 3]
            sent = await stored(local) - before
            taken_now = await counters(local, "taken")
            handed_now = await counters(local, "handed_over")
            least = min(taken_now[role] - taken[role] for role in ROLES)
            if sent < 60 and least > 60 and local.mesh.socket.received - direct > 60:
                break
            await asyncio.sleep(1.0)
        else:
            pytest.fail(f"of 120 requests {sent} messages were stored, {least} taken everywhere")
        assert [handed_now[role] - handed[role] > 30 for role in ROLES] == [True, True, False]
        assert local.mesh.requester.retries == 0
        await emptied(local)  # what was stored was acked
        assert await counters(local, "redelivered") == dict.fromkeys(ROLES, 0)
        assert local.mesh.link.callback_errors == 0


async def test_over_second_connections_of_one_host_requests_are_answered_without_the_server() -> (
    None
):
    """Neither a lane nor the inbox of the second connection brings what the socket can."""
    model = split(chain(3, 64_000), name="chain", cuts=chain_cuts(3), bandwidth=LOOPBACK)
    assert ModelInfo.from_manifest(model.manifest.to_json()).is_large
    features = np.ones((1, 16_000), np.float32)
    expected = chain_expected(features, 3)
    async with local_mesh() as local:
        await push(local, model.manifest.to_json(), model.files)
        for role in ROLES:
            local.start(role, "chain", "--two-connections", "on")
        await local.ready(40.0)
        async with swarm.connect(local.url, local.name, two_connections="on") as client:
            inbox = client.bulk.options.inbox
            assert inbox in sockets()
            by_server: list[str] = []
            local.mesh.link.subscribe(f"{inbox}.*", lambda m: by_server.append(m.subject))
            await local.mesh.link.flush()

            async def ask_once() -> None:
                result = await client.infer("chain", {"features": features}, 10.0)
                assert np.array_equal(result.outputs["result"], expected)

            async with asyncio.timeout(20):
                while not (await counters(local, "handed_over"))["shard-2"]:
                    await ask_once()
            for _ in range(5):  # a machine that stands still for a moment makes them store
                by_server.clear()
                before, direct = await stored(local, "chain"), client.socket.received
                for _ in range(60):
                    await ask_once()
                in_lanes = await stored(local, "chain") - before
                received = client.socket.received - direct
                if in_lanes < 30 and len(by_server) < 10 and received >= 50:
                    break
                await asyncio.sleep(1.0)
            else:
                pytest.fail(
                    f"of 60 requests {in_lanes} messages were stored, {len(by_server)} answers "
                    f"came by the server and {received} by the socket"
                )
            assert client.requester.retries == 0
        assert inbox not in sockets()
        await emptied(local, "chain")


async def test_messages_in_the_lanes_do_not_keep_the_later_ones_there() -> None:
    """A new client knows no node at first; its runs take 10 ms, eight at a time."""
    model = chain(3, 1 << 20, work=90)
    split_chain = split(model, name="chain", cuts=chain_cuts(3), bandwidth=LOOPBACK)
    features = np.ones((1, 1 << 18), np.float32)
    expected = chain_expected(features, 3, work=90)

    async def keep_asking(mesh: swarm.Mesh, count: int) -> None:
        for _ in range(count):
            result = await mesh.infer("chain", {"features": features}, 20.0)
            assert np.array_equal(result.outputs["result"], expected)

    async with local_mesh() as local:
        await add_model(local, split_chain, *ROLES)
        by_lanes = []
        for _ in range(5):  # a machine that stands still for a moment makes them store for a second
            before = await stored(local, "chain")
            async with swarm.connect(local.url, local.name) as client:
                await asyncio.gather(*(keep_asking(client, 12) for _ in range(8)))
                assert client.requester.retries == 0
            by_lanes.append(await stored(local, "chain") - before)
            if 8 <= by_lanes[-1] < 60:
                break
        else:
            pytest.fail(f"of 96 requests, three stages each, {by_lanes} messages were stored")
        await emptied(local, "chain")


async def test_a_client_that_has_rested_remembers_where_nodes_are() -> None:
    async with local_mesh() as local:
        await add_model(local, split_digits(), *ROLES)
        await known_near(local)
        for _ in range(5):  # one that stands still for 10 ms stores all the same
            rest(local)
            before, sent = await stored(local), local.mesh.socket.sent
            await ask(local, 1)
            if await stored(local) == before and local.mesh.socket.sent > sent:
                break
            await asyncio.sleep(1.0)
        else:
            pytest.fail("the first request after a rest was stored five times")


async def test_a_node_that_ended_while_its_client_rested_loses_it_nothing() -> None:
    async with local_mesh() as local:
        nodes = await add_model(local, split_digits(), *ROLES, "fallback")
        await known_near(local)
        rest(local)
        old = str((local.status_of(nodes[0]) or {})["inbox"])
        nodes[0].wanted = False
        nodes[0].signal(signal.SIGKILL)
        await until(lambda: not nodes[0].alive, 10.0, "the node ends")
        assert old in remembered(local), "the client has not heard of it"
        result = await ask(local, 1)
        assert result.hops[0].node.startswith("fallback")
        assert remembered(local)
        assert old not in remembered(local)


async def test_a_mesh_without_shared_memory_sends_nothing_directly() -> None:
    async with local_mesh(shm=False) as local:
        await add_model(local, split_digits(), *ROLES)
        for number in range(30):
            await ask(local, number)
        assert await counters(local, "taken") == dict.fromkeys(ROLES, 0)
        assert (local.mesh.socket.sent, local.mesh.socket.received) == (0, 0)
        assert {status["inbox"] for status in local.statuses.values()} == {""}


async def test_in_fast_mode_the_stages_of_one_host_need_no_server_between_them() -> None:
    async with local_mesh() as local:
        await add_model(local, split_digits(), *ROLES)
        await known_near(local)
        seen: list[str] = []
        local.mesh.link.subscribe(
            f"{local.mesh.subjects.root}.fresh.>", lambda message: seen.append(message.subject)
        )
        await local.mesh.link.flush()
        for number in range(30):
            await ask(local, number, delivery="fast")
        await local.mesh.link.flush()
        assert seen == []


@pytest.mark.parametrize(
    ("victims", "number"),
    [
        ((0,), signal.SIGKILL),
        ((1,), signal.SIGKILL),
        ((0, 1, 2), signal.SIGKILL),
        ((0,), signal.SIGSTOP),
        ((2,), signal.SIGSTOP),
    ],
    ids=["first killed", "second killed", "all killed", "first stopped", "last stopped"],
)
async def test_nodes_that_end_with_lone_requests_in_hand_lose_nothing(
    victims: tuple[int, ...], number: int
) -> None:
    """In the midst of lone requests, again and again: each is answered rightly."""
    async with local_mesh() as local:
        nodes = await add_model(local, split_digits(), *ROLES, "fallback")
        await known_near(local)
        stop = asyncio.Event()
        answered = 0

        async def stream() -> None:
            nonlocal answered
            while not stop.is_set():
                await ask(local, answered % 50)
                answered += 1

        running = asyncio.create_task(stream())
        random = np.random.default_rng(5)
        for _ in range(4):
            calm = answered + int(random.integers(20, 60))
            await until(lambda n=calm: answered > n, 10.0, "answers before the fault")
            before = answered
            for victim in victims:
                nodes[victim].signal(number)
            await until(lambda n=before: answered > n + 20, 10.0, "answers go on")
            if number == signal.SIGSTOP:
                nodes[victims[0]].signal(signal.SIGCONT)
            await local.ready()
        stop.set()
        await running
        await emptied(local)
        assert answered > 100
        assert local.mesh.requester.retries == 0, "the lanes did it"


async def test_killed_nodes_leave_no_socket_to_the_next_start() -> None:
    async with local_mesh() as local:
        nodes = await add_model(local, split_digits(), *ROLES)
        theirs = {str((local.status_of(node) or {})["inbox"]) for node in nodes}
        assert theirs <= sockets()
        for node in nodes:
            node.wanted = False
            node.signal(signal.SIGKILL)
        await until(lambda: not any(node.alive for node in nodes), 10.0, "the nodes end")
        async with swarm.connect(local.url, local.name):
            await until(lambda: not theirs & sockets(), 10.0, "the next process removes them")


async def test_status_says_where_a_node_is_reached_and_its_priority() -> None:
    async with local_mesh() as local:
        await add_model(local, split_digits(), "shard-1", "fallback")
        told = {s["role"]: (s["inbox"][:7], s["priority"]) for s in local.statuses.values()}
        assert told == {"shard-1": ("_INBOX.", 0), "fallback": ("_INBOX.", 2)}
        assert json.dumps(local.statuses)
