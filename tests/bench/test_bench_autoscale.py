"""`swarm bench autoscale`: when a p99 counts as inside its objective, and what is a miss."""

from __future__ import annotations

from typing import Any

import pytest

from bench.asked import Asked
from bench.fleets import burning
from bench.fleets.autoscaling import AUTO, BUDGET, AutoscalePlan, measure, misses, step_of

PLAN = AutoscalePlan(before=5.0, after=20.0, objective=0.1)


def requests(slow: range, refused: range = range(0)) -> list[Asked]:
    """Ten a second; those at these tenths of a second are slow, or refused."""
    found = []
    for tenth in range(250):
        sent, took = tenth / 10, 0.5 if tenth in slow else 0.01
        status = "RESOURCE_EXHAUSTED" if tenth in refused else "OK"
        found.append(Asked(sent, sent + took, status))
    return found


def test_p99_is_inside_from_the_last_request_on_that_is_slow_or_refused() -> None:
    found = step_of(requests(range(60, 80), range(80, 90)), PLAN)
    assert found["p99_before_ms"] == pytest.approx(10.0)
    assert found["p99_behind_ms"] == BUDGET * 1e3, "a refused one takes its budget"
    # One of a hundred may be slow: of the last 161 requests the first one is.
    assert found["inside_after_s"] == pytest.approx(3.9)
    assert found["p99_inside_ms"] == pytest.approx(10.0)


def test_a_load_that_is_never_served_in_time_is_never_inside() -> None:
    assert step_of(requests(range(60, 250)), PLAN)["inside_after_s"] is None


def test_late_help_and_nodes_to_and_fro_and_lost_requests_are_misses() -> None:
    fine = {"way": AUTO, "wrong": 0, "lost": 0, "turns": 0, "inside_after_s": 3.0}
    assert misses({"runs": [fine, fine | {"way": "fixed one", "inside_after_s": None}]}) == []
    assert len(misses({"runs": [fine | {"inside_after_s": None}]})) == 1
    assert len(misses({"runs": [fine | {"lost": 1}]})) == 1
    del fine["inside_after_s"]
    assert len(misses({"runs": [fine | {"turns": 2}]})) == 1


@pytest.mark.benchmark
async def test_an_idle_node_helps_when_the_load_is_three_times_as_high() -> None:
    plan = AutoscalePlan(before=3.0, after=60.0, ways=(AUTO,), helped_for=5.0)
    document = await measure(plan, lambda text: None)
    [auto] = document["runs"]
    assert (auto["wrong"], auto["lost"]) == (0, 0)
    assert auto["changes"] >= 1


def test_an_objective_out_of_reach_that_takes_all_devices_is_a_miss_and_one_in_reach_unmet() -> (
    None
):
    fine: dict[str, Any] = {"wrong": 0, "lost": 0, "turns": 0, "busy": 0.5, "objective_ms": 100.0}
    near = fine | {"way": "in reach", "nodes": 2, "p99_helped_ms": 60.0}
    far = fine | {"way": "out of reach", "nodes": 2, "p99_helped_ms": 60.0}
    assert burning.misses({"runs": [near, far]}) == []
    assert len(burning.misses({"runs": [near | {"p99_helped_ms": 101.0}]})) == 1
    assert len(burning.misses({"runs": [near | {"p99_helped_ms": None}]})) == 1
    assert len(burning.misses({"runs": [near | {"busy": 0.8}, far | {"nodes": 3}]})) == 2


@pytest.mark.benchmark
async def test_an_idle_node_helps_where_bursts_miss_an_objective() -> None:
    plan = burning.BurningPlan(60.0, ("in reach",), helped_for=6.0)
    document = await burning.measure(plan, lambda text: None)
    [run] = document["runs"]
    assert (run["wrong"], run["lost"]) == (0, 0)
    assert run["nodes"] >= 2
