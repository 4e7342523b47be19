"""Growth: many real nodes in few processes, agents that get their own answers."""

from __future__ import annotations

import json

import psutil
import pytest

from bench.fleets.large_fleet import LARGE_FLEET, LargeFleetPlan, longest_gap, misses
from bench.fleets.scale import (
    GROWING_FIGURES,
    SCALE,
    ScalePlan,
    allow_connections,
    laws,
)
from bench.fleets.scale_point import Point, manifest
from shards.manifest import Manifest
from swarm.model import ModelInfo


def test_every_stage_of_every_model_has_a_node() -> None:
    placement = Point(nodes=3, models=4).placement()
    assert len(placement) == 12
    assert len({name for name, _, _ in placement}) == 12
    assert {(role, model) for _, role, model in placement} == {
        (f"shard-{stage}", f"m{number}") for stage in (1, 2, 3) for number in range(4)
    }
    counts = [role for _, role, _ in Point(nodes=10).placement()]
    assert [counts.count(f"shard-{k}") for k in (1, 2, 3)] == [4, 3, 3]


def test_the_empty_model_is_a_valid_manifest_without_files() -> None:
    assert Manifest.from_json(manifest("m0")).files() == ()
    assert ModelInfo.from_manifest(manifest("m0")).last == 3


def test_one_quantity_grows_while_the_others_are_held() -> None:
    plan = ScalePlan((3, 6), (2,), (5,), base=Point(nodes=12, agents=8))
    assert [(p.nodes, p.models, p.agents) for _, _, p in plan.points()] == [
        (3, 1, 8),
        (6, 1, 8),
        (12, 2, 8),
        (12, 1, 5),
    ]


def test_each_law_names_the_figure_the_cause_and_what_one_more_costs() -> None:
    seen = {
        ("nodes", n): [{**dict.fromkeys(GROWING_FIGURES, 1.0), "idle_messages_per_s": 100.0 * n}]
        for n in (3, 30)
    }
    found = {law["figure"]: law for law in laws(seen)}
    assert "in proportion to nodes" in found["idle_messages_per_s"]["words"]
    assert found["idle_messages_per_s"]["each"] == pytest.approx(100.0)
    assert "does not depend on nodes" in found["p50_ms"]["words"]


def test_the_limit_of_open_files_is_never_lowered() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_connections(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


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


def test_the_longest_gap_begins_with_the_last_answer_before_the_kill() -> None:
    rows = [
        (0.0, 0.1, True),
        (0.2, 0.3, True),
        (0.4, 0.9, False),
        (0.5, 1.0, True),
        (1.0, 1.1, True),
    ]
    assert longest_gap(rows, 0.35) == pytest.approx(0.7)
    assert longest_gap(rows, 1.05) == pytest.approx(0.1)
    assert longest_gap([], 1.0) == 0.0


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


def test_each_target_of_a_large_fleet_that_is_missed_is_named() -> None:
    document = {
        "idle": {"fleet": {"server_cpu_percent": 30.0}},
        "requests": {"ratio": 1.3},
        "takeovers": {"five": {"p50_ms": 40, "lost": 0}, "fleet": {"p50_ms": 400, "lost": 2}},
        "memory_mb": {"more": 20.0},
    }
    found = misses(document)
    assert len(found) == 5
    assert "30 %" in found[0]
    assert "1.3 times" in found[1]
