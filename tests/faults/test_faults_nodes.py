"""Three shards and a fallback: nodes and servers die, hang, leave and return while requests go on.
Each request is answered, rightly and once; how soon is what `swarm bench failover` measures."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
import pytest_asyncio
from support.meshes import READY, Load, as_found, close, digits, dismiss, mesh_of, split_digits
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from swarm.wire.messages import Request, Result

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHARDS = ("shard-1", "shard-2", "shard-3")
BUDGET = 40.0  # seconds: whatever a busy machine takes to start a node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[LocalMesh]:
    async with mesh_of(split_digits(), *SHARDS, "fallback") as local:
        yield local


@asynccontextmanager
async def under_load(local: LocalMesh, delivery: str = "durable") -> AsyncIterator[Load]:
    """Requests all the time, of a client of its own. The mesh is left as it was found."""
    async with as_found(local), swarm.connect(local.url, local.name) as client:
        load = Load(client, rate=50, budget=BUDGET, delivery=delivery)
        async with load.steady():
            await load.answers()
            yield load


def nodes_of(local: LocalMesh, *roles: str) -> list[NodeProcess]:
    return [node for role in roles for node in local.supervisor.nodes if node.role == role]


def name_of(local: LocalMesh, node: NodeProcess) -> str:
    status = local.status_of(node)
    assert status is not None
    return str(status["node"])


async def kill(*nodes: NodeProcess) -> None:
    """All at the same moment; they stay dead until `revive`."""
    for node in nodes:
        node.wanted = False
        node.signal(signal.SIGKILL)
    await eventually(lambda: not any(node.alive for node in nodes), "they end")


async def revive(local: LocalMesh, *nodes: NodeProcess) -> None:
    for node in nodes:
        node.start()
        node.wanted = True
    await local.ready(READY)


@pytest.mark.parametrize("stages", [(1,), (2, 3)], ids=["one", "two at once"])
async def test_killed_shards_are_taken_over_and_serve_again_when_they_are_back(
    mesh: LocalMesh, stages: tuple[int, ...]
) -> None:
    victims = nodes_of(mesh, *(f"shard-{stage}" for stage in stages))
    async with under_load(mesh) as load:
        await kill(*victims)
        for stage in stages:
            await load.answers(by="fallback", stage=stage)
        await revive(mesh, *victims)
        for victim, stage in zip(victims, stages, strict=True):
            await load.answers(by=name_of(mesh, victim), stage=stage)


async def test_the_death_of_an_idle_fallback_concerns_nobody(mesh: LocalMesh) -> None:
    fallback = nodes_of(mesh, "fallback")
    async with under_load(mesh) as load:
        await kill(*fallback)
        for stage, role in enumerate(SHARDS, 1):
            await load.answers(by=role, stage=stage)
        await revive(mesh, *fallback)


async def test_requests_outlive_the_last_node_of_a_stage_until_it_is_back(mesh: LocalMesh) -> None:
    shard, fallback = nodes_of(mesh, "shard-2", "fallback")
    async with under_load(mesh) as load:
        await kill(shard)
        await load.answers(by="fallback", stage=2)
        await kill(fallback)
        await revive(mesh, shard, fallback)
        await load.answers(by=name_of(mesh, shard), stage=2)


@pytest.mark.parametrize(
    ("stage", "delivery"), [(2, "durable"), (3, "durable"), (1, "fast"), (2, "fast")]
)
async def test_a_hung_shard_costs_no_request_and_serves_again_when_it_wakes(
    mesh: LocalMesh, stage: int, delivery: str
) -> None:
    """SIGSTOP: the node keeps its connection and what it holds, and wakes with old work in hand."""
    (victim,) = nodes_of(mesh, f"shard-{stage}")
    async with under_load(mesh, delivery) as load:
        victim.signal(signal.SIGSTOP)
        try:
            await load.answers(by="fallback", stage=stage)
        finally:
            victim.signal(signal.SIGCONT)
        await load.answers(by=victim.role, stage=stage)


async def test_a_rolling_restart_of_every_node_is_not_noticed(mesh: LocalMesh) -> None:
    """SIGTERM: a node finishes what it has begun, gives the rest back, and ends with 0."""
    async with under_load(mesh) as load:
        for old in list(mesh.supervisor.nodes):
            assert await dismiss(mesh, [old]) == [0]
            new = mesh.start(old.role, "digits")
            await mesh.ready(READY)
            await load.answers()
            if old.role in SHARDS:
                await load.answers(by=name_of(mesh, new))
    assert {result.attempt for result in load.results} == {1}


async def test_replicas_that_leave_in_turn_need_no_fallback(mesh: LocalMesh) -> None:
    first, fallback = nodes_of(mesh, "shard-2", "fallback")
    second = mesh.start("shard-2", "digits")
    await mesh.ready(READY)
    async with under_load(mesh) as load:
        await dismiss(mesh, [fallback])
        for leaving in (first, second):
            assert await dismiss(mesh, [leaving]) == [0]
            new = mesh.start("shard-2", "digits")
            await mesh.ready(READY)
            await load.answers(by=name_of(mesh, new))
        mesh.start("fallback", "digits")
        await mesh.ready(READY)
    assert {result.attempt for result in load.results} == {1}
    await dismiss(mesh, nodes_of(mesh, "shard-2")[1:])


async def test_replicas_and_then_a_fallback_die_and_the_other_fallback_goes_on(
    mesh: LocalMesh,
) -> None:
    extra = [mesh.start(role, "digits") for role in ("shard-2", "fallback")]
    await mesh.ready(READY)
    replicas, fallbacks = nodes_of(mesh, "shard-2"), nodes_of(mesh, "fallback")
    async with under_load(mesh) as load:
        await kill(*replicas)
        await load.answers(by="fallback", stage=2)
        await kill(fallbacks[0])
        await load.answers(by=name_of(mesh, fallbacks[1]), stage=2)
        await revive(mesh, *replicas, fallbacks[0])
    await dismiss(mesh, extra)


async def test_two_lost_stages_have_a_node_each_until_their_primaries_are_back(
    mesh: LocalMesh,
) -> None:
    """A standby takes the first; the fallback, which has nothing to do with it, the second."""
    standby = mesh.start("standby", "digits")
    await mesh.ready(READY)
    first, second = nodes_of(mesh, "shard-1", "shard-2")
    spare = name_of(mesh, standby)

    def told(event: str) -> bool:
        return bool(mesh.statuses[spare]["events"].get(event))

    async with under_load(mesh) as load:
        await kill(first)
        await eventually(lambda: told("took-over"), "the standby takes stage 1")
        await kill(second)
        await load.answers(by=spare, stage=1)
        await load.answers(by="fallback", stage=2)
        await revive(mesh, first, second)
        await eventually(lambda: told("gave-back"), "the standby gives it back")
        await load.answers(by="shard-1", stage=1)
    await dismiss(mesh, [standby])


async def answered_to_any_client(local: LocalMesh) -> None:
    """By the service, which registers anew."""
    body = b"".join(bytes(part) for part in Request({"image": digits()[0][:1]}).parts())
    client = await nats.connect(local.url)
    try:
        async with asyncio.timeout(BUDGET):
            while True:
                try:
                    subject = local.mesh.subjects.infer("digits")
                    reply = await client.request(subject, body, timeout=BUDGET)
                except nats.errors.NoRespondersError:
                    continue  # an answer of the server: each look is a round trip
                assert Result.decode(reply.data).status == "OK"
                return
    finally:
        await client.close()


async def the_server_dies_and_comes_back(local: LocalMesh) -> Load:
    """Under load; gives the load."""
    server = local.server
    assert server is not None
    before = {node.pid for node in local.supervisor.nodes}
    async with under_load(local) as load:
        for _ in range(2):
            old = server.pid
            os.kill(old, signal.SIGKILL)
            await eventually(lambda old=old: server.alive and server.pid != old, "a new server")
            await load.answers()
    assert {node.pid for node in local.supervisor.nodes} == before, "no node had to restart"
    return load


async def test_a_server_that_forgets_the_lanes_and_comes_back_loses_no_request(
    mesh: LocalMesh,
) -> None:
    """The lanes were in memory: nodes make them anew, requesters ask again, with the same id."""
    await the_server_dies_and_comes_back(mesh)
    await answered_to_any_client(mesh)


async def test_a_server_that_keeps_the_lanes_in_files_loses_no_request() -> None:
    async with mesh_of(split_digits(), *SHARDS, flags=("--storage", "file")) as local:
        await the_server_dies_and_comes_back(local)


@pytest.mark.parametrize("role", ["shard-1", "fallback"])
async def test_what_a_hung_node_swallows_of_any_client_another_node_answers(
    mesh: LocalMesh, role: str
) -> None:
    """The server goes on giving it requests; none is asked again by who asked it."""
    (victim,) = nodes_of(mesh, role)
    images, logits = digits()
    body = b"".join(bytes(part) for part in Request({"image": images[:1]}).parts())
    async with as_found(mesh):
        client = await nats.connect(mesh.url)
        subject = mesh.mesh.subjects.infer("digits")
        names = [name_of(mesh, node) for node in nodes_of(mesh, "shard-1", "fallback")]

        def witnesses() -> list[str]:
            return [name for name in names if mesh.statuses[name]["witness"]["of"]]

        await eventually(lambda: len(witnesses()) == 2, "both look after each other")
        victim.signal(signal.SIGSTOP)
        try:
            replies = await asyncio.gather(
                *(client.request(subject, body, timeout=BUDGET) for _ in range(40))
            )
        finally:
            victim.signal(signal.SIGCONT)
            await client.close()
    for reply in replies:
        result = Result.decode(reply.data)
        assert result.status == "OK"
        assert close(result.outputs["logits"], logits[:1])
