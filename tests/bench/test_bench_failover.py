"""`swarm bench failover`: its arithmetic, on records made by hand, and one scenario of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.faulty_mesh import Layout, start_rig

from bench.faults.failover import play_scenario
from bench.faults.failover_figures import (
    Trial,
    quiet_latency,
    scenario_figures,
    window_figures,
)
from bench.faults.scenarios import SCENARIOS, Targets
from bench.report.figure import percentile

TRIAL = Trial(quiet=0.0, fault=1.0, end=2.0, ready_again=2.5)
WAITS = {"1": 60.0}


def request(sent: float, latency: float = 0.002, **fields: Any) -> dict[str, Any]:
    record = {"due": sent, "sent": sent, "done": sent + latency, "status": "OK"}
    return record | {"attempt": 1, "wrong": False, "nodes": ["shard-1-x"]} | fields


def paced(start: float, end: float, every: float = 0.01) -> list[dict[str, Any]]:
    return [request(start + i * every) for i in range(round((end - start) / every))]


def test_the_p99_of_a_few_trials_is_their_worst() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([3.0, 1.0, 2.0], 0.50) == 2.0
    assert percentile([], 0.99) == 0.0


def test_only_the_quiet_part_counts_as_usual() -> None:
    requests = [*paced(0.0, 0.9), request(1.5, 0.5), request(0.95, 0.5)]
    figures = quiet_latency(requests, [TRIAL])
    assert figures["requests"] == 90
    assert figures["p99"] == pytest.approx(2.0)


def test_the_gap_runs_from_the_last_answer_before_the_fault() -> None:
    requests = [*paced(0.0, 0.98), *paced(1.1, 2.0)]
    figures = window_figures(requests, [], TRIAL)
    assert figures["gap_ms"] == pytest.approx(130, abs=1)
    assert figures["lost"] == 0


def test_a_request_that_was_under_way_at_the_fault_is_affected() -> None:
    requests = [*paced(0.0, 1.0), request(0.995, 0.065), *paced(1.0, 2.0)]
    figures = window_figures(requests, [], TRIAL)
    assert figures["slowest_ms"] == pytest.approx(65)
    assert figures["affected"] == 1


def test_silence_to_the_end_of_the_window_is_a_gap() -> None:
    silent = [request(s, 0.4) for s in (1.7, 1.8)]
    requests = [*paced(0.0, 1.0), *silent]
    assert window_figures(requests, [], TRIAL)["gap_ms"] > 1000
    assert window_figures(paced(0.0, 1.0), [], TRIAL)["gap_ms"] > 990


def test_silence_at_the_end_of_the_window_is_a_gap_too() -> None:
    figures = window_figures([*paced(0.0, 1.5), *paced(1.9, 3.0)], [], TRIAL)
    assert figures["gap_ms"] == pytest.approx(410, abs=2)
    # The answers that would end it come after the window, or never.
    figures = window_figures(paced(0.0, 1.5), [], TRIAL)
    assert figures["gap_ms"] == pytest.approx(508, abs=2)


def test_a_lost_request_is_lost_wherever_it_was_and_misses_the_target() -> None:
    failed = request(2.2, 0.01, status="UNAVAILABLE", message="gone")
    figures = scenario_figures([*paced(0.0, 3.0), failed], [], [TRIAL], WAITS, Targets())
    assert figures["lost"] == 1
    assert not figures["passed"]
    assert figures["errors"] == {"UNAVAILABLE: gone": 1}


def test_a_refused_request_is_not_lost_and_misses_a_target_of_its_own() -> None:
    refused = request(1.2, 0.001, status="RESOURCE_EXHAUSTED", message="overload")
    figures = scenario_figures([*paced(0.0, 3.0), refused], [], [TRIAL], WAITS, Targets())
    assert (figures["lost"], figures["refused"]) == (0, 1)
    assert [v["target"] for v in figures["targets"] if not v["passed"]] == ["refused"]


def test_a_slow_request_misses_the_bound_by_the_ack_wait() -> None:
    targets = Targets(gap=60, slowest=150, by_ack_wait=True)
    requests = [*paced(0.0, 1.0), request(0.999, 0.100), *paced(1.0, 3.0)]
    figures = scenario_figures(requests, [], [TRIAL], WAITS, targets)
    missed = [verdict["target"] for verdict in figures["targets"] if not verdict["passed"]]
    assert missed == ["slowest <= ack_wait + 2 x p99, ms"]


def test_an_answer_too_many_is_seen_and_judged_where_that_is_promised() -> None:
    doubles = [[1.5, 1.0, 0.0]]
    lenient = scenario_figures(paced(0.0, 3.0), doubles, [TRIAL], WAITS, Targets())
    strict = scenario_figures(paced(0.0, 3.0), doubles, [TRIAL], WAITS, Targets(doubles=0))
    assert lenient["doubles"] == strict["doubles"] == 1
    assert lenient["passed"]
    assert not strict["passed"]


@pytest.mark.benchmark
@pytest.mark.processes
async def test_a_scenario_is_played_to_its_end() -> None:
    """What the figures are is no concern of this test."""
    async with start_rig(Layout(), quick=True) as rig:
        figures = await play_scenario(rig, SCENARIOS["kill-shard-2"], 1, 50.0)
    assert (figures["status"], figures["lost"], figures["wrong"]) == ("ok", 0, 0)
    assert figures["usual_ms"]["requests"] > 0, "the load did not run"
