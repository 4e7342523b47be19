"""Backoff, usual durations, ack_wait, sliding count."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.ack_wait import ack_wait_for
from swarm.flow.backoff import Backoff
from swarm.flow.latency import Usual
from swarm.flow.window import SlidingCount


def test_pauses_double_up_to_the_longest_one() -> None:
    pauses = Backoff(0.5, 3.0)
    assert [pauses.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_pauses_begin_anew() -> None:
    pauses = Backoff(0.5, 3.0)
    for _ in range(4):
        pauses.next()
    pauses.reset()
    assert pauses.next() == 0.5


@given(st.integers(0, 2000), st.integers(0, 99))
def test_a_drawn_pause_is_never_longer_than_its_ceiling(attempts: int, seed: int) -> None:
    pauses = Backoff(0.01, 1.0, Random(seed))
    drawn = [pauses.next() for _ in range(attempts)]
    assert all(0 <= p <= min(1.0, 0.01 * 2.0 ** min(n, 20)) for n, p in enumerate(drawn))


def test_drawn_pauses_are_spread_and_grow() -> None:
    rng = Random(1)
    backoffs = [Backoff(0.01, 1.0, rng) for _ in range(500)]
    rounds = [[backoff.next() for backoff in backoffs] for _ in range(5)]
    assert max(rounds[0]) - min(rounds[0]) > 0.009
    assert sum(rounds[4]) > 12 * sum(rounds[0])


@pytest.mark.parametrize(("first", "most"), [(-1.0, 1.0), (2.0, 1.0)])
def test_pauses_that_cannot_be_are_refused(first: float, most: float) -> None:
    with pytest.raises(ValueError, match="first"):
        Backoff(first, most)


def test_the_usual_duration_moves_by_the_weight_of_the_newest() -> None:
    usual = Usual(0.8, weight=1 / 4)
    usual.add(0.4)
    assert usual.ewma == pytest.approx(0.7)


def test_where_nothing_is_assumed_the_first_measurement_counts_whole() -> None:
    usual = Usual()
    assert not usual.known
    for seconds in (0.0, 0.8):
        usual.add(seconds)
    assert usual.known
    assert usual.ewma == pytest.approx(0.1)


def test_a_weight_out_of_range_is_refused() -> None:
    for weight in (0.0, 1.1):
        with pytest.raises(ValueError, match="weight"):
            Usual(weight=weight)


def test_ack_wait_has_a_floor_and_a_ceiling() -> None:
    assert ack_wait_for(0.001) == 0.060
    assert ack_wait_for(0.100) == pytest.approx(0.400)
    assert ack_wait_for(1e6) == 30.0


def test_ack_wait_changes_only_when_it_is_well_off() -> None:
    assert ack_wait_for(0.030, current=0.100) == 0.100
    assert ack_wait_for(0.100, current=0.100) == pytest.approx(0.400)
    assert ack_wait_for(0.001, current=0.400) == 0.060
    assert ack_wait_for(0.100, current=0.001) == pytest.approx(0.400)  # below the floor


def test_ack_wait_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="p99"):
        ack_wait_for(float("nan"))
    with pytest.raises(ValueError, match="ceiling"):
        ack_wait_for(0.1, ceiling=0.01)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5)), max_size=60))
def test_a_sliding_count_lies_between_the_last_window_and_all_but_a_slice_of_it(
    steps: list[tuple[float, int]],
) -> None:
    count, now, history = SlidingCount(10.0, 10), 0.0, []
    for step, amount in steps:
        now += step
        count.add(amount, now)
        history.append((now, amount))
        newest = sum(n for at, n in history if at > now - 9.0 + 1e-6)
        most = sum(n for at, n in history if at >= now - 10.0 - 1e-6)
        assert newest <= count.total(now) <= most
