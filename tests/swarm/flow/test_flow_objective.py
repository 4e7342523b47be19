"""Objectives: what they may be, and when their error budget burns, in simulated time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.flow.objective import LEAST_BAD, WINDOWS, Burn, Objective, parse_objective

STEP = 5.0


def played(burn: Burn, start: float, seconds: float, rate: float, failed: float) -> float:
    """Requests at a steady rate (a second), a share of which fails; returns the end's moment."""
    now, asked, bad = start, 0.0, 0.0
    while now < start + seconds:
        now += STEP
        asked += rate * STEP
        bad += rate * STEP * failed
        while asked >= 1:
            asked -= 1
            fails = bad >= 1
            bad -= fails
            burn.count(not fails, 1.0)
        burn.keep(now)
    return now


@pytest.mark.parametrize(
    ("document", "objective"),
    [
        ({"p99_ms": 20, "errors": 0.001}, Objective(20.0, 0.001)),
        ({"p99_ms": 0.5}, Objective(0.5)),
        ({"errors": 0.01, "later": 1}, Objective(errors=0.01)),
    ],
)
def test_an_objective_is_read_and_written_alike(
    document: dict[str, Any], objective: Objective
) -> None:
    assert parse_objective(document) == objective
    assert parse_objective(objective.as_doc()) == objective


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        [],
        {"p99": 20},
        {"p99_ms": 0},
        {"p99_ms": "20ms"},
        {"p99_ms": float("nan")},
        {"errors": 1},
        {"errors": True},
        {"errors": -0.1},
        {"p99_ms": None, "errors": None},
    ],
)
def test_an_objective_that_cannot_be_is_refused(document: object) -> None:
    with pytest.raises(InvalidArgument):
        parse_objective(document)


def test_a_budget_that_is_spent_as_allowed_does_not_burn() -> None:
    burn = Burn(Objective(errors=0.01))
    now = played(burn, 0.0, 7200.0, 10.0, 0.01)
    told = burn.judge(now)
    assert told["burn"]["1h"] == pytest.approx(1.0, rel=0.1)
    assert told["burning"] == ""


def test_a_sudden_outage_burns_within_minutes_and_ends_soon_after_it() -> None:
    burn = Burn(Objective(errors=0.001))
    now = played(burn, 0.0, 6 * 3600.0, 10.0, 0.0)
    assert burn.judge(now)["burning"] == ""
    now = played(burn, now, 240.0, 10.0, 0.5)
    told = burn.judge(now)
    assert told["burning"] == "errors"
    assert told["burn"]["5m"] > told["burn"]["1h"] > 14.4
    now = played(burn, now, 360.0, 10.0, 0.0)
    assert burn.judge(now)["burn"]["5m"] == 0.0
    now = played(burn, now, 1800.0, 10.0, 0.0)
    assert burn.judge(now)["burning"] == "", "the short windows have forgotten it"


def test_a_slow_burn_is_seen_by_the_long_windows() -> None:
    burn = Burn(Objective(errors=0.001))
    now = played(burn, 0.0, 6 * 3600.0, 20.0, 0.0)
    now = played(burn, now, 6 * 3600.0, 20.0, 0.008)
    told = burn.judge(now)
    assert told["burn"]["1h"] == pytest.approx(8.0, rel=0.2)
    assert told["burning"] == "errors"


def test_latency_has_a_budget_of_its_own() -> None:
    burn = Burn(Objective(p99_ms=20.0, errors=0.5))
    for number in range(100):
        burn.count(True, 50.0 if number % 4 == 0 else 5.0)
    told = burn.judge(60.0)
    assert (told["slow"], told["failed"], told["burning"]) == (25, 0, "latency")
    assert told["burn"]["5m"] == pytest.approx(25.0)


def test_a_few_failures_where_few_ask_do_not_burn() -> None:
    burn = Burn(Objective(errors=0.001))
    for _ in range(LEAST_BAD - 1):
        burn.count(False, 1.0)
    assert burn.judge(60.0)["burning"] == ""
    burn.count(False, 1.0)
    assert burn.judge(60.0)["burning"] == "errors"


def test_without_requests_nothing_burns() -> None:
    assert Burn(Objective(1.0, 0.1)).judge(0.0)["burn"] == dict.fromkeys(WINDOWS, 0.0)


@given(
    st.lists(st.tuples(st.floats(0, 4000), st.integers(0, 30), st.booleans()), max_size=60),
)
def test_no_window_counts_more_than_there_was(steps: list[tuple[float, int, bool]]) -> None:
    burn, now = Burn(Objective(10.0, 0.01)), 0.0
    for pause, requests, ok in steps:
        now += pause
        for _ in range(requests):
            burn.count(ok, 1.0)
        burn.keep(now)
        for windows in burn.rates(now).values():
            bad = [windows[name][1] for name in WINDOWS]
            assert bad == sorted(bad), "a longer window holds a shorter one"
            assert bad[-1] <= burn.failed
            assert all(rate <= 100.0 + 1e-9 for rate, _ in windows.values())
