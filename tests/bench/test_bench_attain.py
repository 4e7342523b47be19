"""`swarm bench attain`: its arithmetic, and one short run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.faults.attain import ATTAIN, AttainPlan, attained, misses, wilson_interval


def row(due: float, took: float, status: str = "OK", wrong: bool = False) -> dict[str, Any]:
    """Sent late by half of its time: that is no excuse."""
    times = {"due": due, "sent": due + took / 2, "done": due + took}
    return times | {"status": status, "wrong": wrong}


def test_a_request_counts_from_the_moment_at_which_it_was_due() -> None:
    rows = [row(n / 100, 0.001 if n else 0.05) for n in range(100)]
    found = attained(rows, 0.0, 1.0, 100.0, 0.02)
    assert (found["requests"], found["in_time"], found["late"]) == (100, 99.0, 1)
    assert found["reached_ms"] == {"50": 1.0, "99": 1.0, "99.9": 50.0, "99.96": 50.0}
    assert found["client_lag_ms"]["max"] == 25.0


def test_what_is_lost_failed_or_wrong_is_never_in_time() -> None:
    rows = [row(n / 100, 0.001) for n in range(3, 97)]
    rows[5] = row(rows[5]["due"], 0.001, wrong=True)
    rows[6] = row(rows[6]["due"], 0.001, "UNAVAILABLE")
    found = attained(rows, 0.0, 1.0, 100.0, 0.02)
    assert found["requests"] == 100, "those without a row were due, too"
    assert (found["lost"], found["wrong"], found["failed"]) == (6, 1, {"UNAVAILABLE": 1})
    assert found["in_time"] == 92.0
    assert found["reached_ms"]["99"] is None
    document = {"phases": {"quiet": found}, "at_least": 95.0}
    assert len(misses(document)) == 3


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_the_interval_holds_the_share(hits: int, of: int) -> None:
    hits = min(hits, of)
    low, high = wilson_interval(hits, of)
    assert 0 <= low <= hits / of + 1e-9
    assert hits / of - 1e-9 <= high <= 1


@pytest.mark.benchmark
@pytest.mark.processes
def test_a_short_run_has_all_phases() -> None:
    document = ATTAIN.document(AttainPlan(100.0, 0.5, 6.0, kill=True, rollout=True))
    assert list(document["phases"]) == ["quiet", "kill", "rollout"]
    assert document["phases"]["kill"]["events"] > 0
    assert document["missed"] == []
