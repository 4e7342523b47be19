"""A lane's credit, its pulls and what it has in hand, in simulated time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.lane.credit import FUSED_UP_TO, SECONDS_AHEAD, TUNE_EVERY, Credit
from swarm.transport.lane.message import LaneMessage
from swarm.transport.lane.pulls import EXPIRES, GRACE, Pulls, unanswered
from swarm.transport.lane.unacked import Unacked


def flow(credit: Credit, rate: float, at_once: int, seconds: float, start: float = 1.0) -> float:
    """`rate` messages a second, `at_once` at a time; returns the time at the end."""
    messages = int(rate * seconds)
    for number in range(messages):
        credit.tune(start + number / rate)
        credit.arrived(at_once)
    end = start + seconds
    credit.tune(end)
    return end


@pytest.mark.parametrize(
    ("rate", "at_once", "expected"),
    [
        (50, 8, 4),  # few a second: the least
        (500, 8, 15),  # what comes within the time ahead
        (500, 1, 4),  # single messages, however often
        (500, 3, 6),  # twice the messages that there are at once
        (5000, 100, 32),  # the most
    ],
)
def test_credit_follows_the_rate_between_its_bounds_but_not_much_beyond_what_is_there_at_once(
    rate: float, at_once: int, expected: int
) -> None:
    credit = Credit(4, 32)
    flow(credit, rate, at_once, 1.0)
    assert credit.size == pytest.approx(expected, abs=1)


def test_credit_falls_back_when_the_traffic_ends() -> None:
    credit = Credit(4, 32)
    end = flow(credit, 1000, 32, 1.0)
    assert credit.size == pytest.approx(1000 * SECONDS_AHEAD, abs=1)
    credit.tune(end + TUNE_EVERY)
    credit.tune(end + 1.5 * TUNE_EVERY)
    assert credit.size > 4, "too early to tell"
    credit.tune(end + 2 * TUNE_EVERY)
    assert credit.size == 4


def test_a_most_below_the_least_keeps_the_credit_as_it_is() -> None:
    credit = Credit(4, 0)
    flow(credit, 5000, 100, 1.0)
    assert credit.size == 4


def test_acks_ask_for_the_next_message_while_the_credit_is_small() -> None:
    assert Credit(FUSED_UP_TO, 0).fused
    assert not Credit(FUSED_UP_TO + 1, 0).fused


@given(
    least=st.integers(1, 64),
    most=st.integers(0, 64),
    steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50), st.integers(1, 300))),
)
def test_credit_never_leaves_its_bounds_whatever_comes(
    least: int, most: int, steps: list[tuple[float, int, int]]
) -> None:
    credit, now = Credit(least, most), 0.0
    for passed, messages, at_once in steps:
        now += passed
        for _ in range(messages):
            credit.arrived(at_once)
        credit.tune(now)
        assert least <= credit.size <= max(least, most)


def pulls() -> Pulls:
    return Pulls("$JS.API.NEXT", "_INBOX.pull", 1)


def test_a_pull_says_how_many_messages_for_how_long_and_with_which_priority() -> None:
    asked = {"expires": int(EXPIRES * 1e9), "group": "g", "priority": 1}
    for count in (1, 7):
        assert json.loads(pulls().body(count)) == {"batch": count, **asked}
    assert pulls().ack_and_next == b"+NXT " + pulls().body(1)


def test_each_message_asked_for_is_counted_until_it_comes_or_its_pull_ends() -> None:
    it = pulls()
    it.asked(4, 0.0)
    it.answered()
    assert len(it.standing) == 3
    it.ended(2)
    assert len(it.standing) == 1
    it.answered()
    it.answered()  # of a pull that was given up
    it.ended(5)
    assert len(it.standing) == 0


def test_a_pull_that_is_unanswered_long_past_its_expiry_was_lost() -> None:
    it = pulls()
    it.asked(2, 0.0)
    it.asked(1, 2.0)
    it.forget_lost(EXPIRES + GRACE)
    assert len(it.standing) == 3
    it.forget_lost(EXPIRES + GRACE + 0.5)
    assert len(it.standing) == 3
    it.forget_lost(EXPIRES + GRACE + 0.6)
    assert len(it.standing) == 1, "by the time of the call before"


def test_behind_a_stop_of_the_process_the_answers_are_read_before_a_pull_counts_as_lost() -> None:
    it = pulls()
    it.forget_lost(1.0)
    it.asked(3, 1.0)
    it.forget_lost(60.0)  # the first round after the stop
    assert len(it.standing) == 3
    it.forget_lost(60.1)
    assert len(it.standing) == 0


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        (b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n", 3),
        (b"NATS/1.0 408 Request Timeout\r\n\r\n", 1),
        (b"NATS/1.0 408\r\nNats-Pending-Messages: many\r\n\r\n", 1),
    ],
)
def test_the_end_of_a_pull_says_how_many_messages_will_not_come(headers: bytes, count: int) -> None:
    assert unanswered(headers) == count


class NoLane:
    """Keeps nothing."""

    def age(self, message: LaneMessage) -> float:
        return 0.0

    def has(self, message: LaneMessage) -> bool:
        return False

    def release_credit(self, message: LaneMessage, at_ns: int) -> None: ...

    def take_credit(self, message: LaneMessage) -> None: ...

    def end(self, message: LaneMessage, verb: bytes) -> bool:
        return False


def message(sequence: int, received: int = 0) -> LaneMessage:
    return LaneMessage(NoLane(), f"$JS.ACK.s.c.1.{sequence}.1.0.0", b"", received)


def test_held_messages_are_in_hand_and_not_at_work() -> None:
    hand = Unacked()
    one, two = message(1), message(2)
    hand.add(one)
    hand.add(two)
    hand.release_credit(one)
    hand.release_credit(one)
    assert (len(hand), hand.at_work, hand.messages()) == (2, 1, [one, two])
    hand.take_credit(one)
    assert hand.at_work == 2
    hand.release_credit(two)
    assert hand.remove(two)
    assert (len(hand), hand.at_work) == (1, 1)


def test_another_message_of_the_same_number_is_not_the_one_in_hand() -> None:
    hand = Unacked()
    before, now = message(1), message(1)
    hand.add(now)
    assert not hand.has(before)
    assert not hand.remove(before)
    assert hand.has(now)
    assert hand.find(1) is now


def test_messages_are_due_to_be_kept_alive_by_when_the_server_last_heard_of_them() -> None:
    hand = Unacked()
    old, new = message(1, received=100), message(2, received=200)
    hand.add(old)
    hand.add(new)
    assert hand.untouched_since(150) == [old]
    old.touched = 300
    assert hand.untouched_since(250) == [new]


def test_a_message_that_its_lane_does_not_keep_is_settled_and_says_so() -> None:
    gone = message(1)
    assert gone.ended
    assert gone.ack() is False


@pytest.mark.parametrize(
    ("run", "beside"), [(0.0, 24), (0.001, 24), (0.02, 10), (0.1, 2), (10.0, 1), (None, 0)]
)
def test_while_some_are_to_pass_others_more_is_in_hand_and_a_slow_node_takes_one(
    run: float | None, beside: int
) -> None:
    credit = Credit(4, 32)
    assert credit.in_all == credit.size == 4
    credit.let_pass(run)
    assert (credit.size, credit.in_all) == (4, 4 + beside)
    credit.bound(2)  # by a slow link, on which nobody is passed either
    assert credit.in_all == 2
    credit.bound(None)
    credit.let_pass(None)
    assert credit.in_all == 4
