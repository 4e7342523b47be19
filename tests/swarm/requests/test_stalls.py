"""Times without any answer while requests wait are told apart from queueing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.requests.admission import AdmissionConfig, Stalls

INTERVAL = 0.01  # seconds from one answer to the next


def test_the_silence_before_the_first_answer_after_an_outage_is_a_stall() -> None:
    stalls = Stalls()
    assert not stalls.answered(0.99, 1.0, INTERVAL)
    assert stalls.answered(1.5, 3.5, INTERVAL)
    assert stalls.during(1.5, 3.5, INTERVAL) == pytest.approx(2.0)
    assert stalls.during(3.0, 3.55, INTERVAL) == pytest.approx(0.5), "sent in the middle of it"
    assert stalls.during(3.51, 3.55, INTERVAL) == 0.0, "sent after it"


def test_a_stall_that_lasts_counts_before_it_ends() -> None:
    stalls = Stalls()
    stalls.answered(0.99, 1.0, INTERVAL)
    assert stalls.during(2.0, 7.0, INTERVAL) == pytest.approx(5.0)


def test_steady_answers_are_no_stall_however_long_each_request_waits() -> None:
    stalls = Stalls()
    for number in range(100):
        now = 10.0 + number * INTERVAL
        assert not stalls.answered(now - 3.0, now, INTERVAL) or number == 0
    assert stalls.during(10.5, now, INTERVAL) == 0.0


def test_slow_pipelines_have_longer_gaps_than_fast_ones() -> None:
    stalls = Stalls()
    stalls.answered(0.0, 1.0, 2.0)
    assert not stalls.answered(1.0, 4.0, answer_interval=2.0)
    assert stalls.answered(1.0, 13.0, answer_interval=2.0)


def test_the_backlog_of_a_stall_may_be_there_for_four_times_as_long() -> None:
    stalls = Stalls()
    assert not stalls.is_catching_up(1.0)
    stalls.answered(1.0, 1.5, INTERVAL)
    assert stalls.is_catching_up(3.4)
    assert not stalls.is_catching_up(3.6)


def test_a_client_that_was_idle_has_no_stall() -> None:
    stalls = Stalls()
    stalls.answered(0.99, 1.0, INTERVAL)
    assert not stalls.answered(100.0, 100.0 + AdmissionConfig().stall / 2, INTERVAL)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=60), st.floats(0, 1))
def test_no_request_spends_more_time_in_stalls_than_it_lived(
    answers: list[tuple[float, float]], interval: float
) -> None:
    stalls, now = Stalls(), 100.0
    for passed, took in answers:
        now += passed
        stalls.answered(now - took, now, interval)
        for lived in (0.0, took, 50.0):
            assert -1e-9 <= stalls.during(now - lived, now, interval) <= lived + 1e-9
