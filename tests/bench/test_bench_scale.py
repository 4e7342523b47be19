"""Growth: many real nodes in few processes, agents that get their own answers."""

from __future__ import annotations

import json

import psutil
import pytest

from bench.fleets.large_fleet import LARGE_FLEET, LargeFleetPlan, misses
from bench.fleets.scale import (
    GROWING_FIGURES,
    SCALE,
    ScalePlan,
)
from bench.fleets.scale_point import Point


@pytest.mark.benchmark
@pytest.mark.processes
@pytest.mark.integration
def test_nodes_models_and_agents_are_swept_on_a_real_server() -> None:
    before = set(psutil.Process().children(recursive=True))
    base = Point(nodes=3, agents=2, requests=20, idle=0.3, hosts=1)
    plan = ScalePlan((3,), (2,), (4,), base=base)
    document = json.loads(json.dumps(SCALE.document(plan)))
    assert not set(psutil.Process().children(recursive=True)) - before
    rows = {point["sweep"]: point["rounds"][0] for point in document["points"]}
    assert [rows[s]["nodes"] for s in ("nodes", "models", "agents")] == [3, 6, 3]
    for row in rows.values():
        # Three lanes: each hop is at least published, acknowledged, delivered and acked.
        assert row["messages_per_request"] > 6
        assert row["bytes_per_request"] > 4 * 1024
        assert row["p50_ms"] > 0
        assert row["server_rss_mb"] > 1
        assert row["failed"] == 0
        assert row["connections"] > row["nodes"] + row["agents"]
    assert set(document["figures"]) == {
        f"{value} {sweep}/{key}"
        for sweep, value in (("nodes", 3), ("models", 2), ("agents", 4))
        for key in GROWING_FIGURES
    }


@pytest.mark.benchmark
@pytest.mark.processes
@pytest.mark.integration
def test_a_fleet_of_real_and_imitated_nodes_is_measured_beside_five() -> None:
    before = set(psutil.Process().children(recursive=True))
    plan = LargeFleetPlan(30, others=1, rounds=1, requests=10, trials=1, settle=1.0, idle=1.0)
    document = json.loads(json.dumps(LARGE_FLEET.document(plan)))
    assert not set(psutil.Process().children(recursive=True)) - before
    idle = document["idle"]
    # Each imitated node has a connection; the two that measure have one each in both meshes.
    # Witnesses read on connections of their own, two for each model.
    assert idle["fleet"]["connections"] - idle["five"]["connections"] in range(25, 28)
    assert idle["fleet"]["messages_per_s"] > idle["five"]["messages_per_s"]
    assert document["requests"]["fleet"]["p50_ms"] > 0
    assert document["takeovers"]["five"]["lost"] == document["takeovers"]["fleet"]["lost"] == 0
    assert document["knows_all_s"] >= document["ready_s"]
    assert not [line for line in misses(document) if "lost" in line]
