"""`swarm bench weights`: it measures a real mesh, and its judge sees an answer that is torn."""

from __future__ import annotations

import pytest

from bench.fleets.weights import WeightsPlan, measure_weights


@pytest.mark.benchmark
@pytest.mark.processes
async def test_updates_under_load_lose_and_tear_no_answer() -> None:
    document = await measure_weights(WeightsPlan(("digits",), 6, 0.1, 1), lambda text: None)
    case = document["cases"]["digits"]
    assert (case["lost"], case["torn"]) == (0, 0)
    assert case["weight_versions_seen"] >= 3
    assert case["requests"] > 10
    assert min(case["p99_ratio"], case["take_p50_ms"], case["memory_before_mb"]) > 0
