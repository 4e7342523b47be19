"""Two nodes a shard and no fallback."""

from __future__ import annotations

import pytest
from faults_rig import played, slowest

from nodes.bench.faults.rig import Layout, Rig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = Layout(replicas=2, fallbacks=0)


async def test_a_rolling_restart_of_replicas_is_not_noticed(mesh: Rig) -> None:
    figures = await played(mesh, "rolling-replicas")
    assert slowest(figures) <= 1000
    assert figures["retried"] == 0
