"""`ack_wait` and credit over links of any rate and round trip, without a link."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.ack_wait import CEILING_S, FLOOR_S, ack_wait_for, link_credit, link_wait
from swarm.flow.transfers import CAUTIOUS_RATE, LATE_FOR_S, VISIBLE, Transfers

trips = st.floats(0.0, 0.5)
rates = st.floats(1e5, 2e9)  # bytes a second
sizes = st.integers(VISIBLE, 4 << 20)
credits = st.integers(1, 32)
holdings = st.floats(0.0, 1.0)


def seen(round_trip: float, rate: float, size: int, messages: int = 8, ahead: int = 0) -> Transfers:
    """Messages that came over a link, each behind `ahead` others."""
    transfers = Transfers(size)
    transfers.round_trip = round_trip
    for _ in range(messages):
        transfers.received(size, round_trip / 2 + (ahead + 1) * size / rate)
    return transfers


@given(trips, rates, sizes, credits)
def test_ack_wait_covers_the_round_trip_and_all_messages_of_the_credit(
    round_trip: float, rate: float, size: int, credit: int
) -> None:
    needed = round_trip + credit * size / rate
    wait = seen(round_trip, rate, size).wait(credit, 0.0)
    assert wait >= min(needed * 0.999, CEILING_S)
    assert wait <= CEILING_S


@given(trips, rates, sizes, credits, st.integers(1, 4))
def test_messages_that_waited_on_the_link_never_shorten_ack_wait(
    round_trip: float, rate: float, size: int, credit: int, ahead: int
) -> None:
    alone, behind = seen(round_trip, rate, size), seen(round_trip, rate, size, ahead=ahead)
    assert behind.wait(credit, 0.0) >= alone.wait(credit, 0.0)


@given(st.floats(0.0, 0.002), st.integers(1, 200_000), st.integers(1, 4))
def test_a_fast_local_lane_keeps_the_least_ack_wait_and_its_credit(
    round_trip: float, size: int, credit: int
) -> None:
    transfers = seen(round_trip, 100e6, size)
    link = transfers.wait(credit, 0.0)
    assert ack_wait_for(0.001, link=link) == FLOOR_S
    assert transfers.credit(0.001) is None


@given(trips, rates, sizes, holdings)
def test_the_credit_keeps_a_slow_link_busy_but_for_a_tenth_of_a_message(
    round_trip: float, rate: float, size: int, holding: float
) -> None:
    credit = seen(round_trip, rate, size).credit(holding)
    transfer = size / rate
    if credit is not None:
        # One cycle: ask, take, work. The link carries `credit` messages in it.
        cycle = round_trip + transfer + holding
        assert credit >= cycle / transfer - 0.11
        assert credit - 1 < cycle / transfer


@pytest.mark.parametrize(("mbit", "most"), [(5, 1), (20, 2), (2, 1)])
def test_large_features_behind_a_slow_link_are_asked_for_one_or_two_at_a_time(
    mbit: float, most: int
) -> None:
    assert seen(0.010, mbit * 125_000, 154_000).credit(0.005) == most


def test_a_far_link_is_trusted_with_little_until_the_first_message() -> None:
    transfers = Transfers(154_000)
    assert not transfers.is_guessed
    assert transfers.wait(4, 0.0) == 0.0, "nothing is known of the link"
    transfers.round_trip = 0.010
    assert transfers.is_guessed
    assert transfers.credit(0.0) == 1
    assert transfers.wait(1, 0.0) > 154_000 / CAUTIOUS_RATE
    transfers.received(154_000, 0.005 + 154_000 / 12.5e6)  # 100 Mbit/s
    assert not transfers.is_guessed
    assert transfers.wait(4, 0.0) < 0.15
    assert transfers.credit(0.0) is None


def test_one_message_that_a_wrong_clock_makes_fast_does_not_shorten_ack_wait() -> None:
    transfers = seen(0.010, 625_000, 154_000)
    before = transfers.wait(1, 0.0)
    transfers.received(154_000, 0.0)
    assert transfers.wait(1, 0.0) == pytest.approx(before)


def test_a_wait_that_was_too_short_is_doubled_for_a_while() -> None:
    transfers = seen(0.010, 625_000, 154_000)
    usual = transfers.wait(1, 0.0)
    transfers.was_late(2.0, 100.0)
    assert transfers.wait(1, 100.0 + LATE_FOR_S - 1) == 4.0
    assert transfers.wait(1, 100.0 + LATE_FOR_S) == usual


@given(st.floats(0.0, 60.0), st.floats(0.0, 10.0), st.floats(0.0, 40.0))
def test_the_lanes_ack_wait_is_never_shorter_than_its_slowest_link_needs(
    p99: float, current: float, link: float
) -> None:
    wait = ack_wait_for(p99, ceiling=5.0, current=current, link=link)
    assert min(link, CEILING_S) <= wait <= max(5.0, min(link, CEILING_S))
    assert wait >= FLOOR_S
    assert ack_wait_for(p99, ceiling=5.0, current=wait, link=link) == wait, "it stays where it is"


@pytest.mark.parametrize("bad", [math.nan, -0.1])
def test_times_that_no_link_has_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="transfer"):
        link_wait(0.0, bad, 1)
    with pytest.raises(ValueError, match="credit"):
        link_wait(0.0, 0.0, 0)
    with pytest.raises(ValueError, match="holding"):
        link_credit(0.0, 0.1, bad)
    with pytest.raises(ValueError, match="NaN"):
        Transfers().received(1, math.nan)
