"""Meshes on real servers whose clocks are set, and differ."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from support.cluster import Servers, start_servers
from support.meshes import Load, mesh_of, split_digits
from support.stepped_clock import SteppedClock, can_step
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, push
from swarm.errors import SwarmError
from swarm.link import LinkMessage, jetstream
from swarm.subjects import api
from swarm.transport.lane import LaneOptions, make_lanes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.benchmark,
    pytest.mark.skipif(not can_step(), reason="this server's clock cannot be set by itself"),
]
BUDGET = 2.0  # seconds: less than the steps and skews, and enough for a busy machine
ROLES = ("shard-1", "shard-2", "shard-3", "fallback")


def clock_events(mesh: swarm.Mesh) -> list[dict[str, Any]]:
    """Filled as they come."""
    heard: list[dict[str, Any]] = []

    def hear(message: LinkMessage) -> None:
        heard.append(json.loads(bytes(message.data)))

    mesh.link.subscribe(mesh.subjects.event("clock-stepped"), hear)
    return heard


async def test_no_request_is_refused_while_the_servers_clock_is_set_and_people_are_told() -> None:
    async with mesh_of(split_digits(), *ROLES, shm=False) as local:
        assert local.server is not None
        clock, heard = SteppedClock(local.server.pid), clock_events(local.mesh)
        load = Load(local.mesh, rate=50, budget=BUDGET)
        async with load.steady():
            await load.answers()
            for seconds in (-5.0, 5.0, -600.0, 1200.0, -0.05, -600.0):
                clock.step(seconds)
                await load.answers(60)
            await eventually(lambda: any(abs(e["seconds"] - 1200) < 1 for e in heard), "1200 s")
        assert {event["server"] for event in heard} == {local.server.name}
        assert "went forward by 1200 s" in str(heard)


@pytest.mark.parametrize("skew", [-600.0, 3.0])
async def test_lanes_that_lie_on_servers_whose_clocks_differ_refuse_nothing(skew: float) -> None:
    """Every node has lanes on all three servers."""
    async with start_servers(3) as servers, mesh_of(url=servers.url, shm=False) as local:
        for number, server in enumerate(servers.all):
            SteppedClock(server.pid).set(number * skew)
        heard = clock_events(local.mesh)
        await make(local, LaneOptions())
        await serve(local, servers, "fallback", "fallback")
        load = Load(local.mesh, rate=50, budget=BUDGET)
        async with load.steady():
            await load.answers(60)
        assert heard == [], "no clock was set"


async def test_copied_lanes_are_timed_by_the_leader_of_their_stream_and_not_of_their_consumer() -> (
    None
):
    async with start_servers(3) as servers, mesh_of(url=servers.url, shm=False) as local:
        link, subjects = local.mesh.link, local.mesh.subjects
        for number, server in enumerate(servers.all):
            SteppedClock(server.pid).set(600.0 * number)
        await make(local, LaneOptions(copies=3))
        stream = subjects.stream("digits", "1", 1, link.domain)
        consumer = subjects.consumer("digits", 1)
        info = api("STREAM.INFO", stream), api("CONSUMER.INFO", stream, consumer)
        step_down = (
            api("STREAM.LEADER.STEPDOWN", stream),
            api("CONSUMER.LEADER.STEPDOWN", stream, consumer),
        )
        names = [server.name for server in servers.all]

        async def leader(of: int) -> int:
            """The server that leads the stream, 0, or the consumer, 1; -1 while they elect."""
            with contextlib.suppress(SwarmError):
                answer = await jetstream.call(link, info[of])
                return names.index(answer["cluster"].get("leader"))
            return -1

        async def consumer_is_ahead() -> bool:
            stream_leads, consumer_leads = await leader(0), await leader(1)
            if 0 <= stream_leads < consumer_leads:
                return True
            for of, leads, last in ((0, stream_leads, 2), (1, consumer_leads, 0)):
                if leads == last:
                    await jetstream.call(link, step_down[of])
            if (stream_leads, consumer_leads) == (1, 1):
                await jetstream.call(link, step_down[1])
            await asyncio.sleep(0.3)  # they elect
            return False

        await eventually(consumer_is_ahead, "the consumer's leader is minutes ahead")
        await serve(local, servers, "fallback", "fallback")
        load = Load(local.mesh, rate=50, budget=BUDGET)
        async with load.steady():
            await load.answers(60)
            # And the stream's leader moves to a server whose clock is minutes off.
            await jetstream.call(link, step_down[0])
            await load.answers(60)


async def make(local: LocalMesh, lanes: LaneOptions) -> None:
    """Push digits, and make its lanes."""
    await push(local, split_digits().manifest.to_json(), split_digits().files)
    await make_lanes(local.mesh.link, local.mesh.subjects, "digits", "1", 3, lanes)


async def serve(local: LocalMesh, servers: Servers, *roles: str) -> None:
    """Nodes for digits that are connected to different servers."""
    for number, role in enumerate(roles):
        local.start(role, "digits", "--nats", servers.url_from(number))
    await local.ready(60.0)
