"""`swarm bench failover`: its arithmetic, on records made by hand, and one scenario of it."""

from __future__ import annotations

import pytest
from support.faulty_mesh import Layout, start_rig

from bench.faults.failover import play_scenario
from bench.faults.scenarios import SCENARIOS


@pytest.mark.benchmark
@pytest.mark.processes
async def test_a_scenario_is_played_to_its_end() -> None:
    """What the figures are is no concern of this test."""
    async with start_rig(Layout(), quick=True) as rig:
        figures = await play_scenario(rig, SCENARIOS["kill-shard-2"], 1, 50.0)
    assert (figures["status"], figures["lost"], figures["wrong"]) == ("ok", 0, 0)
    assert figures["usual_ms"]["requests"] > 0, "the load did not run"
