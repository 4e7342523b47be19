"""What the comparison of policies promises, and what it found."""

import json
from typing import Any

import pytest
from sim.routing_pipeline import Simulation, clairvoyant
from sim.routing_report import CONTENDERS, run_report
from sim.routing_scenarios import scenarios


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run_report(quick=True)


def row(report: dict[str, Any], scenario: str, policy: str) -> dict[str, Any]:
    (found,) = [
        row for row in report["rows"] if (row["scenario"], row["policy"]) == (scenario, policy)
    ]
    return found  # type: ignore[no-any-return]


def test_every_policy_answers_every_request_of_every_scenario(report: dict[str, Any]) -> None:
    assert len(report["rows"]) == 7 * (len(CONTENDERS) + 1)
    assert all(row["requests"] == report["requests"] for row in report["rows"])
    assert all(0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] for row in report["rows"])


def test_the_report_is_json_and_the_same_for_the_same_seed(report: dict[str, Any]) -> None:
    again = run_report(quick=True, contenders=["adaptive"])
    for found in again["rows"]:
        assert found == row(report, found["scenario"], found["policy"])
    assert json.loads(json.dumps(report)) == report


def test_the_default_policy_has_the_lowest_tail_of_all_over_the_scenarios(
    report: dict[str, Any],
) -> None:
    tails = {entry["policy"]: entry["p99_mean"] for entry in report["summary"]}
    pull = tails.pop("pull")
    own_lanes = {label: tail for label, tail in tails.items() if not label.startswith("pull")}
    assert pull < min(own_lanes.values())
    assert pull < 1.5


def test_weighted_least_pending_survives_old_news(report: dict[str, Any]) -> None:
    for scenario in ("homogeneous", "4:1 speeds", "one slowing", "one dying"):
        assert row(report, scenario, "weighted-least-pending")["goodput"] >= 0.99


def test_the_adaptive_policy_learns_warm_sessions_and_is_never_worse_than_its_fallback(
    report: dict[str, Any],
) -> None:
    adaptive = row(report, "warm sessions", "adaptive")
    assert adaptive["p50_ms"] < 0.7 * row(report, "warm sessions", "pull")["p50_ms"]
    for scenario in {row["scenario"] for row in report["rows"]}:
        safe = row(report, scenario, "weighted-least-pending")
        assert row(report, scenario, "adaptive")["p99_ms"] <= 1.15 * safe["p99_ms"]


def test_the_death_of_a_node_costs_pull_one_ack_wait_at_most(report: dict[str, Any]) -> None:
    (dying,) = [each for each in scenarios(4000, 1) if each.dies]
    latencies = Simulation(dying, "pull", 1).run().latencies
    assert max(latencies) <= 0.060 + 0.040
    assert row(report, "one dying", "pull")["goodput"] >= 0.999


def test_on_equal_nodes_nobody_beats_the_clairvoyant() -> None:
    for scenario in scenarios(1500, 3):
        if scenario.name in ("homogeneous", "one slowing", "one dying"):
            best = clairvoyant(scenario).percentile(0.99)
            for name in ("pull", "weighted-least-pending", "consistent-hash"):
                assert Simulation(scenario, name, 3).run().percentile(0.99) >= best
