"""A member of a mesh of `swarm up --secure` has the server's answers sent to keys that clients and
nodes believe: both go on, and no node is denied what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.meshes import READY, Load, add_model, dismiss, split_digits
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, local_mesh
from nodes.versions.lanes import lanes_maker
from swarm.fleet.service import FleetWatch
from swarm.ids import ulid
from swarm.link import jetstream
from swarm.routing import RequestInfo
from swarm.subjects import api, kv_get_subject

pytest.importorskip("swarm.rollout", reason="a feature is not there")
from swarm.rollout import plan_of
from swarm.rollout.rollouts import roll_out

pytestmark = [pytest.mark.integration, pytest.mark.processes]

ROLES = ("shard-1", "shard-2", "shard-3", "fallback", "standby")
RATE, REQUESTS = 20.0, 60
MEMBERS = ("shard-1", "edge", "dashboard", "learner", "gateway", "requester")


@pytest.fixture
async def secured() -> AsyncIterator[LocalMesh]:
    async with local_mesh(secure=True) as local:
        await add_model(local, split_digits("1"), *ROLES)
        local.start("gateway", "")
        await local.ready(READY)
        yield local


async def test_clients_old_and_new_are_answered_and_desired_state_is_as_it_was(
    secured: LocalMesh,
) -> None:
    local = secured
    assert local.rights is not None
    assert local.server is not None
    subjects, bucket = local.mesh.subjects, local.mesh.subjects.config_bucket
    key = "serve.digits"
    before = await jetstream.kv_entry(local.mesh.link, bucket, key)
    asks = local.rights.issue("requester", "digits").options()
    async with swarm.connect(local.url, agent="old", **asks) as old:
        await Load(old, RATE).run(1)
        for role in MEMBERS:
            models = [] if role == "dashboard" else ["digits"]
            bad = local.rights.issue(role, *models).options()
            async with swarm.connect(local.url, agent=f"bad-{role}", **bad) as member:
                for call in (
                    kv_get_subject(bucket, key),
                    api("STREAM.INFO", f"KV_{bucket}"),
                    subjects.features("digits", "1", 1),
                ):
                    if member.link.may_call(call):
                        member.link.publish(call, b"", f"$KV.{bucket}.{key}")
                await member.link.flush()
        load = Load(old, RATE)
        await load.run(REQUESTS)
        load.check(REQUESTS)
        async with swarm.connect(local.url, agent="new", **asks) as new:
            load = Load(new, RATE)
            await load.run(REQUESTS)
            load.check(REQUESTS)
    assert await jetstream.kv_entry(local.mesh.link, bucket, key) == before

    asks = local.rights.issue("client", "digits").options()
    async with swarm.connect(local.url, agent="simple", **asks) as simple:
        await Load(simple, RATE).run(10)

    # A node that starts meanwhile reads what the operator wrote.
    late = local.start("shard-2", "digits")
    await local.ready(READY)
    standby = next(node for node in local.supervisor.nodes if node.role == "standby")
    assert await dismiss(local, [late, standby]) == [0, 0]
    await eventually(lambda: not late.alive, "the node has drained", READY)
    assert [line for line in local.server.log.splitlines() if "iolation" in line] == []


async def test_no_answer_that_is_aimed_drains_a_node_and_no_empty_message_stops_a_lane(
    secured: LocalMesh,
) -> None:
    local = secured
    assert local.rights is not None
    nodes = list(local.supervisor.nodes)
    subjects, bucket = local.mesh.subjects, local.mesh.subjects.config_bucket
    async with FleetWatch(local.mesh.link, subjects) as watch:
        watch.request_statuses(within=0.0)
        await watch.until(lambda view, now: len(view.living(now)) == len(nodes), READY)
        aims = [subjects.drain(node) for node in watch.view.nodes]
    assert len(aims) == len(nodes)
    pulled = subjects.stream("digits", "1", 2), subjects.consumer("digits", 2)
    calls = {
        "$SYS.REQ.USER.INFO": b"",
        api("STREAM.INFO", f"KV_{bucket}"): b"",
        kv_get_subject(bucket, "serve.digits"): b"",
        kv_get_subject(bucket, "abort.digits.nothing"): b"",
        api("CONSUMER.MSG.NEXT", *pulled): b'{"batch": 1, "no_wait": true, "group": "g"}',
        f"$JS.ACK.{'.'.join(pulled)}.1.99.99.1.0": b"-NAK",
        subjects.dead("digits"): b"",
        subjects.someone: b"",
    }
    for role in (*MEMBERS, "shard-2"):
        models = [] if role == "dashboard" else ["digits"]
        bad = local.rights.issue(role, *models).options()
        async with swarm.connect(local.url, agent=f"bad-{role}", **bad) as member:
            for call, body in calls.items():
                for aim in aims:
                    if member.link.may_call(call):
                        member.link.publish(call, body, aim)
            await member.link.flush()
    asks = local.rights.issue("requester", "digits").options()
    async with swarm.connect(local.url, agent="old", **asks) as old:
        for _ in range(40):  # each ends the way back of a pull, and with it of others' requests
            old.link.publish(subjects.features("digits", "1", 1), b"")
        load = Load(old, RATE)
        await load.run(REQUESTS)
        load.check(REQUESTS)
    assert all(node.alive for node in nodes)


async def test_under_rights_nodes_end_a_rollout_that_breaks_its_guard_and_are_denied_nothing(
    secured: LocalMesh,
) -> None:
    local = secured
    assert local.rights is not None
    assert local.server is not None
    second = split_digits("2")
    await local.mesh.registry.push(
        second.manifest.to_json(), second.files, prepare=lanes_maker(local.mesh)
    )
    # Nothing is that fast: every request of the new version is a breach.
    plan = plan_of(ulid(), "2", "50%", "50%/5m", "p99<10us", samples=10)
    await roll_out(local.mesh.registry, "digits", plan)
    asks = local.rights.issue("requester", "digits").options()
    # Versions stick to agents: half of them ask the new one, and the others for five minutes not.
    present = await local.mesh.registry.in_force("digits")
    assert present is not None
    agents = (RequestInfo("", "digits", "", 1, f"r{number}", "") for number in range(1000))
    agent = next(a.agent for a in agents if present.state.version_for(a, 50.0) == "2")
    async with swarm.connect(local.url, agent=agent, **asks) as requester, asyncio.timeout(90.0):
        while not await local.mesh.registry.aborted("digits", plan.id):
            load = Load(requester, RATE)
            await load.run(20)
            load.check(20)
    assert await local.mesh.registry.served("digits") == "1"
    assert [line for line in local.server.log.splitlines() if "iolation" in line] == []
