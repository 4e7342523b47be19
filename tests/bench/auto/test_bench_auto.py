"""`swarm bench auto`: two of four nodes die at once under load, and nothing is lost."""

from __future__ import annotations

import pytest

from bench.auto.auto import DRAWN, LEAST, MOST, AutoPlan, drawn, misses, play


def test_a_drawn_schedule_is_the_same_for_its_seed_and_keeps_enough_nodes() -> None:
    assert drawn(3, 20, 6) == drawn(3, 20, 6)
    for seed in range(20):
        nodes = 6
        for event in drawn(seed, 20, nodes):
            nodes += DRAWN[event]
            assert LEAST <= nodes <= MOST


@pytest.mark.benchmark
async def test_nodes_that_die_under_load_cost_no_request() -> None:
    document = await play(
        AutoPlan(4, memory=100, rate=10.0, events=("kill-two",)), lambda text: None
    )
    assert misses(document) == []
    [event] = document["events"]
    assert event["plan"] > event["plan_before"], "two nodes share what four had"
    assert len(event["slots"]) == 2
