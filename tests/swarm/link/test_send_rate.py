"""How fast a connection carries messages away, from PINGs and PONGs in simulated time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.transfers import CAUTIOUS_RATE
from swarm.link.send_rate import MOST_UNDER_WAY, NEAR_FIRST, REMEMBERED, SendRate

TRIP = 0.010


def far() -> SendRate:
    send_rate = SendRate()
    send_rate.tripped(TRIP)
    return send_rate


@given(
    st.floats(1e4, 1e8),
    st.lists(st.tuples(st.integers(16_384, 1 << 20), st.floats(0, 0.2)), min_size=1, max_size=24),
)
def test_the_rate_is_the_links_whether_messages_queue_up_or_not(
    rate: float, messages: list[tuple[int, float]]
) -> None:
    send_rate, now, free = far(), 0.0, 0.0
    pongs: list[float] = []
    for size, pause in messages:
        now += pause
        while pongs and pongs[0] <= now:
            send_rate.answered(pongs.pop(0))
        assert send_rate.sends(size, now)
        free = max(free, now) + size / rate
        pongs.append(free + TRIP)
    for pong in pongs:
        send_rate.answered(pong)
    # Up to a round trip of a message that followed another one closely counts as its time.
    longest = max(16_384 / rate, 1e-9)
    assert rate * longest / (longest + TRIP) * 0.99 <= send_rate.rate <= rate * 1.01


def near() -> SendRate:
    send_rate = SendRate()
    send_rate.tripped(0.0003)
    return send_rate


def carried(send_rate: SendRate, rate: float, start: float, count: int = NEAR_FIRST) -> None:
    """So many messages, one every other second, over a link of `rate` bytes a second."""
    for now in (start + 2.0 * n for n in range(count)):
        assert send_rate.sends(100_000, now)
        send_rate.answered(now + send_rate.round_trip + 100_000 / rate)


def test_of_a_near_server_one_message_a_second_is_asked_for_behind_the_first_ones() -> None:
    send_rate = near()
    carried(send_rate, 300e6, 0.0)
    asked = [send_rate.sends(1 << 20, 20.0 + n / 10) for n in range(20)]
    assert asked.count(True) == 2
    assert send_rate.rate == send_rate.backlog == 0.0


def test_a_near_server_behind_a_slow_link_is_far_until_the_link_is_fast_again() -> None:
    send_rate = near()
    carried(send_rate, 0.6e6, 0.0, count=NEAR_FIRST - 1)
    assert not send_rate.is_far, "too few to tell"
    carried(send_rate, 0.6e6, 50.0)
    assert send_rate.is_far
    assert send_rate.rate == pytest.approx(0.6e6, rel=0.01)
    carried(send_rate, 18e6, 100.0)
    assert send_rate.is_far, "neither slow nor fast: as before"
    carried(send_rate, 300e6, 200.0, count=1)
    assert not send_rate.is_far


@given(st.integers(0, REMEMBERED - 1))
def test_one_quick_message_of_the_latest_shows_a_near_server_on_a_busy_machine(at: int) -> None:
    send_rate = near()
    for n in range(REMEMBERED):
        carried(send_rate, 300e6 if n == at else 0.3e6, 10.0 * n, count=1)
    assert not send_rate.is_far


def test_one_slow_round_trip_makes_a_near_server_far_only_until_the_next() -> None:
    send_rate = far()
    send_rate.tripped(0.0005)
    assert not send_rate.is_far


def test_messages_under_way_are_bounded_and_a_lost_connection_forgets_them() -> None:
    send_rate = far()
    asked = [send_rate.sends(20_000, 0.0) for _ in range(MOST_UNDER_WAY + 3)]
    assert asked.count(True) == MOST_UNDER_WAY
    send_rate.lost()
    send_rate.answered(1.0)
    assert send_rate.rate == 0.0


def test_a_pong_as_quick_as_without_a_message_says_that_nothing_is_seen_of_the_link() -> None:
    send_rate = far()
    send_rate.sends(20_000, 0.0)
    send_rate.answered(TRIP)
    assert send_rate.rate == pytest.approx(math.inf)


def test_what_is_under_way_may_take_its_time_on_the_link() -> None:
    send_rate = far()
    assert send_rate.backlog == 0.0
    send_rate.sends(500_000, 0.0)
    assert send_rate.backlog == pytest.approx(1.5 * 500_000 / CAUTIOUS_RATE)
    send_rate.answered(TRIP + 0.2)  # 2.5 MB/s
    assert send_rate.backlog == 0.0
    send_rate.sends(500_000, 1.0)
    send_rate.sends(500_000, 1.0)
    assert send_rate.backlog == pytest.approx(1.5 * 0.4)


def test_a_message_was_carried_when_the_pong_behind_it_has_come() -> None:
    send_rate = far()
    assert send_rate.has_carried(send_rate.sent)
    send_rate.sends(500_000, 0.0)
    first = send_rate.sent
    send_rate.sends(500_000, 0.1)
    second = send_rate.sent
    assert not send_rate.has_carried(first)
    send_rate.answered(1.0)
    assert send_rate.has_carried(first)
    assert not send_rate.has_carried(second)
    send_rate.lost()
    assert send_rate.has_carried(second)
