"""A server that its supervisor watches, as under `swarm up`."""

from __future__ import annotations

import pytest
from faults_rig import played, slowest

from nodes.bench.faults.rig import Layout, Rig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = Layout(watched=True)


async def test_a_killed_server_is_back_before_its_requests_run_out_of_budget(mesh: Rig) -> None:
    assert slowest(await played(mesh, "up-server-killed")) <= 5000
