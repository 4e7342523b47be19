"""A server that keeps its lanes in files."""

from __future__ import annotations

import pytest
from faults_rig import played, slowest

from nodes.bench.faults.rig import Layout, Rig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = Layout(storage="file")


async def test_a_server_restart_that_keeps_the_lanes_loses_no_request(mesh: Rig) -> None:
    assert slowest(await played(mesh, "server-file")) <= 5000
