"""Unanswered attempts in a row: who may ask again, and by which way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.silence import DOUBT_FOR, FEW, MANY, PROBE_EVERY, Silences


def silent(times: int, now: float = 0.0) -> Silences:
    made = Silences()
    for _ in range(times):
        made.silent(now)
    return made


def test_single_silences_change_nothing() -> None:
    some = silent(FEW - 1)
    assert not some.doubtful(0.0)
    assert all(some.may_ask(0.0) for _ in range(100))


def test_after_a_few_in_a_row_everything_goes_by_the_server_for_a_while() -> None:
    some = silent(FEW)
    assert some.doubtful(DOUBT_FOR - 0.01)
    assert not some.doubtful(DOUBT_FOR)
    some.heard()
    assert not some.doubtful(0.0)


@given(st.lists(st.floats(0.0, 0.02), min_size=1, max_size=200))
def test_while_nothing_is_answered_one_asks_for_all(pauses: list[float]) -> None:
    some, now, asked = silent(MANY), 0.0, 0
    for pause in pauses:
        now += pause
        asked += some.may_ask(now)
    assert 1 <= asked <= now / PROBE_EVERY + 1


def test_the_first_answer_lets_all_ask_again() -> None:
    some = silent(10 * MANY)
    assert [some.may_ask(0.0) for _ in range(3)] == [True, False, False]
    some.heard()
    assert all(some.may_ask(0.0) for _ in range(100))
