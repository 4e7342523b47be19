"""Three real servers: the one that keeps the lanes is killed, and stays away."""

from __future__ import annotations

import asyncio

import pytest
from support.meshes import Load
from support.waiting import GENEROUS

from nodes.bench.faults.cluster_scenarios import check_nodes, layout_of, with_lanes
from nodes.bench.faults.rig import Rig
from nodes.life.config import MOVED
from swarm.errors import SwarmError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = layout_of(MOVED)


async def moved_from(rig: Rig, lost: int) -> None:
    """Until another server has the lanes."""
    async with asyncio.timeout(GENEROUS):
        while True:
            try:
                if await with_lanes(rig) != lost:
                    return
            except SwarmError:
                # A refusal may come at once, and the servers need the time to elect a leader.
                await asyncio.sleep(0.1)


async def test_lanes_of_a_lost_server_are_made_anew_on_another_one_and_no_request_is_lost(
    rig: Rig,
) -> None:
    load = Load(rig.local.mesh, rate=50, budget=40.0)
    async with load.steady():
        await load.answers()
        lost = await with_lanes(rig)
        await rig.cluster.all[lost].kill()
        await moved_from(rig, lost)
        assert not rig.cluster.all[lost].alive, "it did not come back"
        await load.answers()
    check_nodes(rig)
