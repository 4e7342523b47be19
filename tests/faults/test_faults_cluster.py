"""Three real servers: the one that keeps the lanes is killed, and stays away."""

from __future__ import annotations

import pytest
from support.faulty_mesh import Layout, Rig
from support.meshes import Load
from support.waiting import GENEROUS, eventually

from nodes.config import MOVED
from swarm.errors import SwarmError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = Layout(servers=3, lanes=MOVED)


async def moved_from(rig: Rig, lost: int) -> None:
    """Until another server has the lanes."""

    async def is_moved() -> bool:
        try:
            return await rig.server_with_lanes() != lost
        except SwarmError:
            return False  # the servers elect a leader

    await eventually(is_moved, "another server has the lanes", 2 * GENEROUS)


async def test_lanes_of_a_lost_server_are_made_anew_on_another_one_and_no_request_is_lost(
    rig: Rig,
) -> None:
    load = Load(rig.local.mesh, rate=50, budget=40.0)
    async with load.steady():
        await load.answers()
        lost = await rig.server_with_lanes()
        await rig.cluster.all[lost].kill()
        await moved_from(rig, lost)
        assert not rig.cluster.all[lost].alive, "it did not come back"
        await load.answers()
    rig.check_nodes()
