"""Whether there are two connections: the setting first, then the least of a few round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.flow.transfers import NEAR_S
from swarm.transport.second_connection import (
    AUTO,
    LONGEST_S,
    MOST_TRIPS,
    OFF,
    ON,
    ConnectionStep,
    checked_setting,
    next_step,
)

trips = st.lists(st.floats(1e-5, 2.0), min_size=1, max_size=2 * MOST_TRIPS)


@given(trips)
def test_a_setting_that_is_on_or_off_is_followed_without_a_measurement(found: list[float]) -> None:
    assert next_step(ON, found) is ConnectionStep.TWO
    assert next_step(OFF, found) is ConnectionStep.ONE


@given(st.lists(st.floats(1e-5, 2.0), min_size=2 * MOST_TRIPS, max_size=2 * MOST_TRIPS))
def test_few_round_trips_decide_and_one_short_one_among_them_is_enough(found: list[float]) -> None:
    seen = 1
    while next_step(AUTO, found[:seen]) is ConnectionStep.MEASURE:
        seen += 1
    assert seen <= MOST_TRIPS
    near = min(found[:seen]) <= NEAR_S
    assert next_step(AUTO, found[:seen]) is (ConnectionStep.ONE if near else ConnectionStep.TWO)
    # Whatever is still waited for, the last round trip alone may be as long as it likes.
    assert sum(found[: seen - 1]) < LONGEST_S


def test_a_near_server_is_known_by_its_first_round_trip() -> None:
    assert next_step(AUTO, [NEAR_S]) is ConnectionStep.ONE


def test_a_busy_near_server_is_not_taken_for_a_far_one() -> None:
    assert next_step(AUTO, [0.012, 0.009]) is ConnectionStep.MEASURE
    assert next_step(AUTO, [0.012, 0.009, 0.0004]) is ConnectionStep.ONE


@pytest.mark.parametrize(
    ("given_", "meant"), [(True, ON), (False, OFF), ("auto", AUTO), ("on", ON), ("off", OFF)]
)
def test_the_setting_is_a_word_or_a_bool(given_: str | bool, meant: str) -> None:
    assert checked_setting(given_) == meant


@pytest.mark.parametrize("word", ["", "yes", "Auto"])
def test_another_word_is_refused_and_the_words_are_named(word: str) -> None:
    with pytest.raises(InvalidArgument, match="auto, on, off"):
        checked_setting(word)
