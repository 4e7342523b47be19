"""Three real servers: the one that keeps the lanes is killed, and stays away."""

from __future__ import annotations

import asyncio

import pytest

from nodes.bench.faults.cluster_scenarios import RATE, check_nodes, layout_of, with_lanes
from nodes.bench.faults.rig import Rig
from nodes.life.config import MOVED
from swarm.errors import SwarmError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = layout_of(MOVED)


async def moved_from(mesh: Rig, lost: int) -> int:
    """The server that has the lanes now, once it is another one."""
    while True:
        try:
            if (now := await with_lanes(mesh)) != lost:
                return now
        except SwarmError:
            await asyncio.sleep(0.1)


async def test_lanes_of_a_lost_server_are_made_anew_on_another_one_and_no_request_is_lost(
    mesh: Rig,
) -> None:
    async with mesh.load(RATE) as load:
        await asyncio.sleep(0.5)
        lost = await with_lanes(mesh)
        await mesh.cluster.all[lost].kill()
        async with asyncio.timeout(12.0):
            assert await moved_from(mesh, lost) != lost
        assert not mesh.cluster.all[lost].alive, "it did not come back"
        await asyncio.sleep(0.5)
        taken = await load.take()
    answers = taken["requests"]
    assert len(answers) > RATE / 2
    assert {row["status"] for row in answers} == {"OK"}
    assert not any(row["wrong"] for row in answers)
    check_nodes(mesh)
