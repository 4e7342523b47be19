"""`swarm bench autoscale`: when a p99 counts as inside its objective, and what is a miss."""

from __future__ import annotations

import pytest

from bench.fleets import burning
from bench.fleets.autoscaling import AUTO, AutoscalePlan, measure


@pytest.mark.benchmark
async def test_an_idle_node_helps_when_the_load_is_three_times_as_high() -> None:
    plan = AutoscalePlan(before=3.0, after=60.0, ways=(AUTO,), helped_for=5.0)
    document = await measure(plan, lambda text: None)
    [auto] = document["runs"]
    assert (auto["wrong"], auto["lost"]) == (0, 0)
    assert auto["changes"] >= 1


@pytest.mark.benchmark
async def test_an_idle_node_helps_where_bursts_miss_an_objective() -> None:
    plan = burning.BurningPlan(60.0, ("in reach",), helped_for=6.0)
    document = await burning.measure(plan, lambda text: None)
    [run] = document["runs"]
    assert (run["wrong"], run["lost"]) == (0, 0)
    assert run["nodes"] >= 2
