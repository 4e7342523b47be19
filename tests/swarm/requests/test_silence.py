"""Unanswered attempts in a row: who may ask again, and by which way."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from swarm.requests import silence
from swarm.requests.silence import Silences


def silent(times: int, now: float = 0.0) -> Silences:
    made = Silences()
    for _ in range(times):
        made.silent(now)
    return made


def takes_leave(some: Silences, now: float) -> bool:
    """Ask again if that is allowed; whether it was."""
    allowed = some.may_ask(now)
    if allowed:
        some.asked(now)
    return allowed


def test_single_silences_change_nothing() -> None:
    some = silent(silence.LASTING_AFTER - 1)
    assert not some.doubtful(0.0)
    assert all(takes_leave(some, 0.0) for _ in range(100))


def test_after_a_few_in_a_row_everything_goes_by_the_server_for_a_while() -> None:
    some = silent(silence.LASTING_AFTER)
    assert some.doubtful(silence.DOUBT_FOR - 0.01)
    assert not some.doubtful(silence.DOUBT_FOR)
    some.answered(0.0)
    assert some.doubtful(silence.DOUBT_FOR - 0.01), "another one answered"


def test_what_nobody_serves_is_doubted_at_once() -> None:
    some = Silences()
    some.unserved(1.0)
    assert some.doubtful(1.0 + silence.DOUBT_FOR - 0.01)
    assert not some.doubtful(1.0 + silence.DOUBT_FOR)


@given(st.lists(st.floats(0.0, 0.02), min_size=1, max_size=200))
def test_while_nothing_is_answered_one_asks_for_all(pauses: list[float]) -> None:
    some, now, asked = silent(silence.PROBES_AFTER), 0.0, 0
    for pause in pauses:
        now += pause
        asked += takes_leave(some, now)
    assert 1 <= asked <= now / silence.PROBE_EVERY + 1


def test_the_first_answer_lets_all_ask_again() -> None:
    some = silent(10 * silence.PROBES_AFTER)
    assert [takes_leave(some, 0.0) for _ in range(3)] == [True, False, False]
    some.answered(0.0)
    assert all(takes_leave(some, 0.0) for _ in range(100))


def test_only_what_was_sent_before_a_lasting_silence_ended_was_swallowed() -> None:
    some = silent(silence.LASTING_AFTER - 1)
    some.answered(1.0)
    assert not some.swallowed(0.5), "that was no lasting one"
    some = silent(silence.LASTING_AFTER)
    assert not some.swallowed(0.5), "it is not over"
    some.answered(1.0)
    assert some.swallowed(0.5)
    assert not some.swallowed(1.0)


def test_a_refusal_lets_no_more_be_repeated_at_a_time() -> None:
    some = silent(silence.LASTING_AFTER)
    some.answered(1.0)
    with some.repeating():
        some.answered(1.1, ok=False)
        assert not some.may_repeat()


def test_what_was_swallowed_is_repeated_one_at_a_time_and_more_with_each_answer() -> None:
    some = silent(silence.LASTING_AFTER)
    some.answered(1.0)
    with some.repeating():
        assert not some.may_repeat()
        some.answered(1.1)
        with some.repeating():
            assert not some.may_repeat()
    assert some.may_repeat()


@given(st.lists(st.sampled_from(["repeat", "answer", "silence"]), max_size=300))
def test_repeats_are_never_many_and_never_stop(events: list[str]) -> None:
    some, under_way = silent(silence.LASTING_AFTER), ExitStack()
    some.answered(1.0)
    most = 0
    for event in events:
        if event == "answer":
            some.answered(1.0)
        elif event == "silence":
            some.silent(1.0)
        elif some.may_repeat():
            under_way.enter_context(some.repeating())
            most += 1
            assert most <= silence.REPEATS
    under_way.close()
    assert some.may_repeat(), "with none under way, one may always go"
