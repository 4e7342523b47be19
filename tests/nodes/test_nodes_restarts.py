"""How soon a node that died starts again, with all times passed in."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodes.up.restarts import (
    AT_ONCE,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_PAUSE_READY,
    STABLE_AFTER,
    WINDOW,
    Past,
    after_death,
    is_missed,
)

SHARDS = ("shard-1", "shard-2")
ALL = (*SHARDS, "fallback")


def pauses(deaths: list[float], was_ready: bool, lived: float = 1.0) -> list[float]:
    """The pause after each of these deaths."""
    past, waited = Past(), []
    for now in deaths:
        past, pause = after_death(past, now, was_ready, lived)
        waited.append(pause)
    return waited


def test_a_node_that_had_been_ready_starts_again_at_once_five_times_a_minute() -> None:
    waited = pauses([float(number) for number in range(AT_ONCE + 3)], was_ready=True)
    assert waited[:AT_ONCE] == [0.0] * AT_ONCE
    assert waited[AT_ONCE:] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses([float(number) for number in range(50)], True)) == LONGEST_PAUSE_READY


def test_deaths_of_more_than_a_minute_ago_cost_nothing() -> None:
    every = WINDOW / AT_ONCE
    assert pauses([number * every for number in range(100)], was_ready=True) == [0.0] * 100
    spent = [float(number) for number in range(20)]
    assert pauses([*spent, spent[-1] + WINDOW + 1.0], was_ready=True)[-1] == 0.0


def test_a_node_that_dies_before_it_is_ready_waits_twice_as_long_each_time() -> None:
    waited = pauses([float(number) for number in range(8)], was_ready=False)
    assert waited[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert waited[-1] == LONGEST_PAUSE


def test_a_node_that_waited_long_for_its_model_is_not_punished_for_old_deaths() -> None:
    waited = pauses([float(number) for number in range(8)], was_ready=False, lived=STABLE_AFTER + 1)
    assert waited == [FIRST_PAUSE] * 8


def test_a_death_before_being_ready_does_not_use_up_the_starts_at_once() -> None:
    past, _ = after_death(Past(), 1.0, False, 0.5)
    past, pause = after_death(past, 2.0, True, 0.5)
    assert pause == 0.0
    assert past == Past((2.0,))


@given(st.lists(st.tuples(st.floats(0, 120), st.booleans(), st.floats(0, 100)), max_size=80))
def test_every_pause_is_bounded_and_the_past_stays_small(
    deaths: list[tuple[float, bool, float]],
) -> None:
    past, now = Past(), 0.0
    for passed, was_ready, lived in deaths:
        now += passed
        past, pause = after_death(past, now, was_ready, lived)
        assert 0.0 <= pause <= LONGEST_PAUSE
        assert all(now - death < WINDOW for death in past.deaths)
        assert all(earlier <= later for earlier, later in pairwise(past.deaths))
        assert was_ready == (past.failures == 0)


def test_a_shard_is_missed_where_neither_a_replica_nor_the_fallback_does_its_work() -> None:
    assert is_missed("shard-2", ALL, ["shard-1"])
    assert not is_missed("shard-2", ALL, ["shard-1", "fallback"])
    assert not is_missed("shard-2", ALL, ["shard-1", "shard-2"])


def test_a_fallback_is_missed_where_a_shard_is_away() -> None:
    assert is_missed("fallback", ALL, ["shard-1"])
    assert not is_missed("fallback", ALL, SHARDS)
