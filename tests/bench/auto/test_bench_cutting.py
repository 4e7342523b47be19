"""`swarm bench auto --events cut`: what it counts, and one cut with real servers."""

from __future__ import annotations

import pytest
from support.cut_link import why_not

from bench.auto.cutting import CutPlan, misses, play


@pytest.mark.benchmark
@pytest.mark.netns
async def test_the_halves_of_a_cut_network_know_one_plan_soon_and_lose_no_request() -> None:
    if reason := why_not():
        pytest.skip(reason)
    # Servers may take ten seconds to elect a leader for the half that goes on.
    found = await play(CutPlan(nodes=5, rate=8.0, cut=20.0, watched=20.0), lambda text: None)
    assert misses(found) == []
    assert found["plans_while_cut"], "the half with the key goes on by a plan of its own"
    assert len(found["plans_after_heal"]) <= 1
    near = found["requests"]["near"]
    assert near["after"]["answered"] == near["after"]["requests"]
