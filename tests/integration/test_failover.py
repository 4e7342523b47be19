"""Nodes and servers die, leave and return; no request is lost."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio
from meshes import READY, Load, add_model, digits, dismiss, good_request, split_digits, until
from nats.aio.client import Client
from nats.aio.msg import Msg

import swarm
from nodes.local.mesh import LocalMesh, local_mesh
from nodes.local.supervisor import NodeProcess
from swarm.link import LinkMessage
from swarm.local.compact import decode_result
from swarm.wire.messages import Request, Result

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


async def answers_seen(client: Client, mesh: swarm.Mesh) -> Counter[str]:
    """Counts each answer that is sent to this client's mesh, by request id."""
    seen: Counter[str] = Counter()

    def count(data: bytes | memoryview) -> None:
        try:
            seen[decode_result(data).id] += 1
        except swarm.DecodeError:
            return  # a PubAck

    async def from_server(message: Msg) -> None:
        count(message.data)

    def from_host(message: LinkMessage) -> None:
        count(message.data)
        deliver(message)

    deliver = mesh.link.deliver
    # What the server brings was bound to the other at the start.
    mesh.link.deliver = from_host  # type: ignore[method-assign]
    await client.subscribe(f"{mesh.link.options.inbox}.>", cb=from_server)
    await client.flush()
    return seen


async def test_500_requests_survive_the_kill_and_the_return_of_a_shard(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    """Each gets one answer, the right one, the slowest of them within half a second."""
    seed = random.SystemRandom().randrange(1 << 32)
    before = random.Random(seed).randrange(100, 200)
    print(f"seed {seed}: SIGKILL after {before} answers")
    victim = next(n for n in digits_mesh.supervisor.nodes if n.role == "shard-2")
    async with swarm.connect(digits_mesh.url) as mesh:
        seen = await answers_seen(nats_client, mesh)
        load = Load(mesh, rate=50)
        stream = asyncio.create_task(load.run(500))

        def served_by(role: str) -> int:
            nodes = [hop.node for r in load.results for hop in r.hops if hop.stage == 2]
            return sum(digits_mesh.statuses[node]["role"] == role for node in nodes)

        await until(lambda: len(load.results) >= before, 10.0, "the first answers")
        victim.wanted = False
        old = digits_mesh.status_of(victim)
        assert old is not None
        victim.signal(signal.SIGKILL)
        await until(lambda: served_by("fallback") > 50, 10.0, "the takeover")
        victim.start()
        victim.wanted = True
        await stream
    load.check(500)
    assert load.slowest < 0.5
    await nats_client.flush()
    await until(lambda: len(seen) >= 500, 5.0, "the last answer")
    assert len(seen) == 500
    again = sum(n - 1 for n in seen.values())
    assert again <= 2, "work that is done twice is what the victim had in hand, no more"
    served = Counter(hop.node for r in load.results for hop in r.hops if hop.stage == 2)
    roles = {node: digits_mesh.statuses[node]["role"] for node in served}
    assert served[old["node"]] > 50, "before the kill"
    assert any(role == "fallback" for role in roles.values()), "the takeover"
    back = {n for n, role in roles.items() if role == "shard-2" and n != old["node"]}
    assert len(back) == 1, "the return"
    await digits_mesh.ready(READY)


async def hung_under(load: Load, count: int, victim: NodeProcess) -> None:
    """All of `count` requests are served, rightly, though a node hangs from the 30th answer on."""
    stream = asyncio.create_task(load.run(count))
    await until(lambda: len(load.results) >= 30, 10.0, "the first answers")
    victim.signal(signal.SIGSTOP)
    try:
        await stream
    finally:
        victim.signal(signal.SIGCONT)
    load.check(count)


async def test_a_hung_shard_costs_no_request(digits_mesh: LocalMesh) -> None:
    """SIGSTOP: the node keeps its connection, and for one ack_wait the messages that it holds."""
    victim = next(n for n in digits_mesh.supervisor.nodes if n.role == "shard-2")
    load = Load(digits_mesh.mesh, rate=50)
    await hung_under(load, 150, victim)
    assert load.slowest < 2.0
    await good_request(digits_mesh.mesh)


@pytest.mark.parametrize("role", ["shard-1", "shard-2"])
async def test_a_hung_shard_costs_fast_mode_no_request(digits_mesh: LocalMesh, role: str) -> None:
    """Its subscription stays, in the queue group too; nothing is stored but with the requester."""
    victim = next(n for n in digits_mesh.supervisor.nodes if n.role == role)
    load = Load(digits_mesh.mesh, rate=50, budget=10.0, delivery="fast")
    await hung_under(load, 200, victim)
    assert load.slowest < 2.0
    await digits_mesh.ready(READY)
    await good_request(digits_mesh.mesh)


async def test_a_replica_leaves_under_load_without_an_error(digits_mesh: LocalMesh) -> None:
    """SIGTERM: the node finishes the requests that it has begun, gives the others back, exits 0."""
    replica = digits_mesh.start("shard-2", "digits")
    await digits_mesh.ready(READY)
    status = digits_mesh.status_of(replica)
    assert status is not None
    load = Load(digits_mesh.mesh, rate=100)
    stream = asyncio.create_task(load.run(300))

    def served() -> int:
        return sum(h.node == status["node"] for r in load.results for h in r.hops)

    await until(lambda: served() > 20, 10.0, "the replica takes a share of the load")
    codes = await dismiss(digits_mesh, [replica])
    last = served()
    await stream
    load.check(300)
    assert codes == [0]
    assert served() - last <= 4, "it asked for no more"
    assert digits_mesh.statuses[status["node"]]["state"] == "left"
    assert load.slowest < 1.0


async def test_the_only_shard_of_a_stage_leaves_and_its_fallback_goes_on(
    digits_mesh: LocalMesh,
) -> None:
    victim = next(n for n in digits_mesh.supervisor.nodes if n.role == "shard-3")
    load = Load(digits_mesh.mesh, rate=100)
    stream = asyncio.create_task(load.run(200))
    await until(lambda: len(load.results) >= 40, 10.0, "the first answers")
    codes = await dismiss(digits_mesh, [victim])
    await stream
    assert codes == [0]
    load.check(200)
    assert load.slowest < 1.0
    fallback = {s["node"] for s in digits_mesh.statuses.values() if s["role"] == "fallback"}
    assert fallback & {h.node for r in load.results[-20:] for h in r.hops if h.stage == 3}
    digits_mesh.start("shard-3", "digits")
    await digits_mesh.ready(READY)


async def test_requests_wait_out_a_rolling_restart_of_all_shards(digits_mesh: LocalMesh) -> None:
    load = Load(digits_mesh.mesh, rate=40)
    stream = asyncio.create_task(load.run(100_000))
    try:
        for role in ("shard-1", "shard-2", "shard-3"):
            old = next(n for n in digits_mesh.supervisor.nodes if n.role == role)
            assert await dismiss(digits_mesh, [old]) == [0]
            digits_mesh.start(role, "digits")
            await digits_mesh.ready(READY)
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
    assert len(load.results) > 20
    load.check(len(load.results))


# --- the server -------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def mortal_mesh() -> AsyncIterator[LocalMesh]:
    """A mesh whose server the test kills and starts."""
    async with local_mesh(name="mortal", watch_server=False) as local:
        await add_model(local, split_digits(), "shard-1", "shard-2", "shard-3")
        yield local


async def test_a_server_that_is_killed_and_comes_back_costs_no_request(
    mortal_mesh: LocalMesh,
) -> None:
    """The lanes were in memory: nodes make them anew, requesters ask again, same id."""
    server = mortal_mesh.server
    assert server is not None
    pids = {node.pid for node in mortal_mesh.supervisor.nodes}
    load = Load(mortal_mesh.mesh, rate=40, budget=5.0)
    stream = asyncio.create_task(load.run(320))
    for _ in range(2):
        wanted = len(load.results) + 60
        await until(lambda n=wanted: len(load.results) >= n, 10.0, "answers")
        await server.kill()
        await asyncio.sleep(0.5)  # the fault: half a second without a server
        await server.start()
    await stream
    load.check(320)
    assert max(r.attempt for r in load.results) > 1, "some were asked again"
    assert load.slowest < 5.0
    assert {node.pid for node in mortal_mesh.supervisor.nodes} == pids, "no node had to restart"
    await good_request(mortal_mesh.mesh)
    # Simple clients, too, are answered again: the service registers anew.
    images, _ = digits()
    client = await nats.connect(mortal_mesh.url)
    try:
        request = Request({"image": images[:1]}).parts()
        body = b"".join(bytes(part) for part in request)
        reply = None
        for _ in range(50):
            try:
                reply = await client.request("swarm.mortal.infer.digits", body, timeout=2.0)
                break
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.2)
        assert reply is not None
        assert Result.decode(reply.data).status == "OK"
    finally:
        await client.close()
    assert all(node.alive for node in mortal_mesh.supervisor.nodes)
