"""When a parcel is handed over, and when it is stored after all: decided in simulated time."""

from __future__ import annotations

from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.handover.policy import HANDOVER, Check, HandoverPolicy

NEXT, OTHER = "_INBOX.next", "_INBOX.other"
RUN = 0.020  # seconds
NOTHING = Check((), ())


@pytest.fixture
def policy() -> HandoverPolicy:
    """Of the stage before the last one."""
    return HandoverPolicy(1, 2)


def hand(policy: HandoverPolicy, *keys: str, run: float = 0.0, now: float = 0.0) -> None:
    for key in keys:
        policy.handed_over(key, NEXT, run, now, together=False)


def patience(policy: HandoverPolicy, run: float, now: float = 0.0) -> float:
    """Seconds for which one more parcel is waited for, of a process that is never silent."""
    policy.handed_over("probe", OTHER, run, now, together=False)
    policy.lives(OTHER, now + 1000.0)
    return policy.due("probe") - now


# --- handed over, and how it ends -------------------------------------------------------


def test_a_parcel_that_is_done_in_time_is_held_until_then_and_no_longer(
    policy: HandoverPolicy,
) -> None:
    assert policy.accepts(NEXT, RUN, 0.0)
    hand(policy, "a", run=RUN)
    assert (policy.in_flight, policy.check(0.001)) == (1, NOTHING)
    policy.acked("a", 0.005)
    assert (policy.in_flight, policy.next_due) == (0, inf)
    assert policy.accepts(NEXT, RUN, 0.005)


def test_a_parcel_of_which_nothing_is_heard_is_stored_when_its_patience_ends(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a")
    late_at = policy.due("a")
    assert HANDOVER.least_patience < late_at == policy.next_due <= HANDOVER.most_for_short
    before = nextafter(late_at, 0.0)
    assert (policy.is_due(before), policy.check(before)) == (False, NOTHING)
    assert policy.is_due(late_at)
    assert policy.check(late_at) == Check((), ("a",))
    assert policy.in_flight == 0


@pytest.mark.parametrize(
    "end", ["acked", "answered", "refused", "dropped", "late", "gone", "closed"]
)
def test_a_parcel_that_has_ended_stays_so_whatever_is_heard_of_it_later(
    policy: HandoverPolicy, end: str
) -> None:
    hand(policy, "a")
    match end:
        case "dropped":
            policy.dropped("a")
        case "late":
            assert policy.check(HANDOVER.most_patience).store == ("a",)
        case "gone":
            assert policy.gone(NEXT, 0.0) == ("a",)
        case "closed":
            assert policy.close() == ("a",)
        case _:
            getattr(policy, end)("a", 0.0)
    for word in (policy.acked, policy.answered, policy.refused):
        word("a", 3.0)
    policy.dropped("a")
    assert policy.gone(NEXT, 3.0) == policy.close() == ()
    assert (policy.in_flight, policy.next_due, policy.check(9.0)) == (0, inf, NOTHING)


def test_a_refused_parcel_makes_its_process_rest_and_no_other(policy: HandoverPolicy) -> None:
    hand(policy, "a")
    policy.refused("a", 1.0)
    assert policy.in_flight == 0
    assert not policy.accepts(NEXT, 0.0, 1.0)
    assert policy.accepts(OTHER, 0.0, 1.0)
    assert policy.accepts(NEXT, 0.0, 1.0 + HANDOVER.refused_pause)


def refuse(policy: HandoverPolicy, now: float) -> float:
    """One parcel is refused at `now`; seconds for which nothing more is handed over."""
    hand(policy, "refused", now=now)
    policy.refused("refused", now)
    return rest(policy, now)


def rest(policy: HandoverPolicy, now: float) -> float:
    low, high = 0.0, 2 * HANDOVER.hang_pause  # by halves: when it begins to accept again
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if policy.accepts(NEXT, 0.0, now + middle) else (middle, high)
    return high


def test_each_refusal_that_follows_doubles_the_pause_up_to_the_longest(
    policy: HandoverPolicy,
) -> None:
    now, pauses = 0.0, []
    for _ in range(9):
        pauses.append(refuse(policy, now))
        now += pauses[-1]
    expected = [min(HANDOVER.refused_pause_most, HANDOVER.refused_pause * 2**n) for n in range(9)]
    assert pauses == pytest.approx(expected)


@pytest.mark.parametrize("word", ["acked", "answered"])
def test_a_parcel_that_is_taken_again_makes_the_next_pause_the_shortest(
    policy: HandoverPolicy, word: str
) -> None:
    now = 0.0
    for _ in range(3):
        now += refuse(policy, now)
    hand(policy, "taken", now=now)
    getattr(policy, word)("taken", now)
    assert refuse(policy, now) == pytest.approx(HANDOVER.refused_pause)


def test_after_a_long_time_without_refusals_the_next_pause_is_the_shortest(
    policy: HandoverPolicy,
) -> None:
    now = 0.0
    for _ in range(5):
        now += refuse(policy, now)
    assert refuse(policy, now + HANDOVER.refused_pause_most) == pytest.approx(
        HANDOVER.refused_pause
    )


def test_the_refusals_of_one_burst_are_one(policy: HandoverPolicy) -> None:
    hand(policy, "a", "b", "c")
    for key in ("a", "b", "c"):
        policy.refused(key, 0.0)
    assert rest(policy, 0.0) == pytest.approx(HANDOVER.refused_pause)


def test_a_process_that_cannot_be_reached_rests_like_one_that_refused(
    policy: HandoverPolicy,
) -> None:
    policy.unreachable(NEXT, 0.0)
    assert rest(policy, 0.0) == pytest.approx(HANDOVER.refused_pause)
    assert policy.accepts(OTHER, 0.0, 0.0)


def test_an_answer_to_the_request_ends_its_parcel_and_says_nothing_of_the_process(
    policy: HandoverPolicy,
) -> None:
    """The process may hang since: it is asked all the same, for its other parcels."""
    hand(policy, "a", "b", run=RUN)
    asked_at = policy.next_due
    assert policy.check(asked_at) == Check((NEXT,), ())
    policy.answered("a", asked_at)
    assert policy.check(asked_at + HANDOVER.answer_within).store == ("b",)


def test_a_parcel_that_nobody_waits_for_is_neither_stored_nor_held(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", "b", run=RUN)
    policy.dropped("a")
    assert policy.in_flight == 1
    assert policy.check(HANDOVER.most_patience).store == ("b",)


def test_the_parcels_of_a_process_that_ended_are_stored_at_once_and_no_others(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", "b")
    policy.handed_over("c", OTHER, 0.0, 0.0, together=False)
    assert policy.gone(NEXT, 0.001) == ("a", "b")
    assert policy.in_flight == 1
    assert policy.gone(NEXT, 0.002) == ()


def test_one_that_is_closed_gives_up_all_that_it_holds_and_accepts_nothing_more(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", "b")
    assert policy.close() == ("a", "b")
    assert not policy.accepts(NEXT, 0.0, 100.0)
    assert not policy.accepts("_INBOX.new", 0.0, 100.0)


# --- how long -----------------------------------------------------------------------------


def test_patience_grows_by_two_runs_for_each_stage_behind() -> None:
    waits = [patience(HandoverPolicy(stage, 5), 0.010) for stage in range(5)]
    assert waits == pytest.approx([HANDOVER.least_patience + 2 * 0.010 * (5 - n) for n in range(5)])


def test_messages_that_were_stored_lately_are_before_the_next_one_until_they_are_done(
    policy: HandoverPolicy,
) -> None:
    alone = patience(HandoverPolicy(1, 2), RUN)
    for _ in range(3):
        policy.stored(1.0)
    assert patience(policy, RUN, 1.0) == pytest.approx(alone + 2 * RUN * 3)
    late = HandoverPolicy(1, 2)
    late.stored(1.0)
    assert patience(late, RUN, 1.0 + 1.01 * HANDOVER.hang_pause) == pytest.approx(alone)


def words(policy: HandoverPolicy, *seconds: float, since: float = 0.0) -> float:
    """Lone parcels, each done after so long; the time afterwards."""
    now = since
    for number, word in enumerate(seconds):
        hand(policy, f"{since} {number}", now=now)
        policy.acked(f"{since} {number}", now + word)
        now += word
    return now


def test_the_patience_for_short_runs_follows_the_time_that_their_words_usually_take(
    policy: HandoverPolicy,
) -> None:
    assert patience(policy, 0.0) == HANDOVER.most_for_short, "before anything is known"
    policy.dropped("probe")
    now = words(policy, *[0.001] * 60)
    assert patience(policy, 0.0, now) == pytest.approx(0.001 + HANDOVER.least_patience, rel=0.01)
    policy.dropped("probe")
    now = words(policy, *[0.001, 0.012] * 20, since=now)
    assert patience(policy, 0.0, now) == pytest.approx(HANDOVER.most_for_short), "they vary"


def test_the_words_of_a_crowd_say_nothing_of_lone_parcels(policy: HandoverPolicy) -> None:
    now = words(policy, *[0.001] * 60)
    usual = patience(policy, 0.0, now)
    policy.dropped("probe")
    policy.handed_over("crowded", NEXT, 0.0, now, together=True)
    policy.acked("crowded", now + 0.050)
    now += 2 * HANDOVER.crowded_for
    assert patience(policy, 0.0, now) == pytest.approx(usual)


def late(policy: HandoverPolicy, since: float, count: int) -> float:
    """Lone parcels in a row, each of which is late; the time afterwards."""
    now = since
    for _ in range(count):
        hand(policy, "late", now=now)
        now = policy.due("late")
        assert policy.check(now).store == ("late",)
        now += 0.001
    return now


def test_after_late_parcels_in_a_row_words_are_thought_to_take_longer(
    policy: HandoverPolicy,
) -> None:
    now = words(policy, *[0.004] * 60)
    usual = patience(policy, 0.0, now)
    policy.dropped("probe")
    now = late(policy, now, HANDOVER.late_in_a_row)
    assert 1.02 * usual < patience(policy, 0.0, now) <= HANDOVER.most_for_short


def test_words_that_are_quick_again_are_soon_expected_quickly_however_long_all_were_late(
    policy: HandoverPolicy,
) -> None:
    now = words(policy, *[0.001] * 60)
    for _ in range(10_000):
        now = late(policy, now, HANDOVER.late_in_a_row) + HANDOVER.hang_pause
    now = words(policy, *[0.001] * 100, since=now)
    assert patience(policy, 0.0, now) == pytest.approx(0.001 + HANDOVER.least_patience, rel=0.1)


@pytest.mark.parametrize("together", [True, False])
def test_in_a_crowd_each_parcel_is_waited_for_longer_and_for_a_moment_after_it(
    policy: HandoverPolicy, together: bool
) -> None:
    if together:
        policy.handed_over("0", NEXT, 0.0, 0.0, together=True)
    else:
        hand(policy, *map(str, range(HANDOVER.crowd + 1)))
    crowded = policy.due(str(0 if together else HANDOVER.crowd))
    assert crowded > HANDOVER.most_for_short
    for key in map(str, range(HANDOVER.crowd + 1)):
        policy.acked(key, 0.001)
    still, later = HANDOVER.crowded_for * 0.99, HANDOVER.crowded_for
    hand(policy, "still", now=still)
    assert policy.due("still") - still > HANDOVER.most_for_short
    policy.acked("still", later)
    hand(policy, "later", now=later)
    assert policy.due("later") - later <= HANDOVER.most_for_short + 1e-9


@pytest.mark.parametrize("last", [2, 3, 8])
def test_of_a_crowd_behind_a_stopped_stage_only_the_stage_before_it_stores(last: int) -> None:
    """Each stage waits longer than the one behind it; none longer than a lane would."""
    waits = []
    for stage in range(last):
        policy = HandoverPolicy(stage, last)
        policy.handed_over("a", NEXT, 0.0, 0.0, together=True)
        policy.lives(NEXT, 1000.0)
        waits.append(policy.due("a"))
    assert waits == sorted(waits, reverse=True)
    assert len(set(waits)) == last
    assert max(waits) <= HANDOVER.crowded_patience + 1e-9
    assert min(waits) > HANDOVER.crowded_patience / 2


# --- does it live? ------------------------------------------------------------------------


def test_a_process_that_is_silent_for_longer_than_a_run_should_take_is_asked_once(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", "b", "c", run=0.1)
    asked_at = HANDOVER.silent_runs * 0.1
    assert policy.next_due == pytest.approx(asked_at)
    assert policy.check(nextafter(asked_at, 0.0)) == NOTHING
    assert policy.check(asked_at) == Check((NEXT,), ())
    assert policy.check(asked_at + HANDOVER.answer_within / 2) == NOTHING
    assert policy.next_due == pytest.approx(asked_at + HANDOVER.answer_within)


def test_a_process_of_short_runs_is_silent_only_after_a_while(policy: HandoverPolicy) -> None:
    hand(policy, *map(str, range(40)), run=0.002)
    assert policy.due("39") == pytest.approx(HANDOVER.silent_least)


@pytest.mark.parametrize("together", [True, False])
def test_a_parcel_that_is_soon_given_up_anyway_is_not_asked_for(
    policy: HandoverPolicy, together: bool
) -> None:
    policy.handed_over("a", NEXT, 0.001, 0.0, together)
    assert policy.check(policy.next_due) == Check((), ("a",))


def test_a_requester_which_hears_nothing_of_the_first_stage_waits_for_all_of_them() -> None:
    requester = HandoverPolicy(0, 3)
    hand(requester, "a", run=0.1)
    assert requester.next_due == pytest.approx((HANDOVER.silent_runs + 2) * 0.1)


def test_a_process_that_does_not_answer_keeps_nothing_and_is_given_nothing_for_a_while(
    policy: HandoverPolicy,
) -> None:
    hand(policy, *"abc", run=0.1)
    policy.handed_over("d", OTHER, 0.1, 0.05, together=False)
    asked_at = policy.next_due
    policy.check(asked_at)
    given_up_at = asked_at + HANDOVER.answer_within
    assert policy.check(given_up_at).store == ("a", "b", "c")
    assert policy.in_flight == 1, "one process does not answer for another"
    assert not policy.accepts(NEXT, 0.1, given_up_at + 0.99 * HANDOVER.hang_pause)
    assert policy.accepts(NEXT, 0.1, given_up_at + HANDOVER.hang_pause)
    assert policy.accepts(OTHER, 0.1, given_up_at)


def test_a_question_that_is_open_stays_so_when_the_parcel_that_it_was_asked_for_has_ended(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", run=RUN)
    late_at = HANDOVER.least_patience + 2 * RUN
    asked_at = policy.next_due
    assert policy.check(asked_at) == Check((NEXT,), ())
    hand(policy, "b", run=RUN, now=asked_at)
    assert policy.check(late_at) == Check((), ("a",))
    assert policy.is_due(asked_at + HANDOVER.answer_within)
    assert policy.check(asked_at + HANDOVER.answer_within) == Check((), ("b",))


@pytest.mark.parametrize("sign", ["lives", "acked", "refused"])
def test_a_process_that_gives_any_sign_of_life_keeps_its_parcels(
    policy: HandoverPolicy, sign: str
) -> None:
    hand(policy, "a", "b", run=0.1)
    asked_at = policy.next_due
    policy.check(asked_at)
    heard_at = asked_at + HANDOVER.answer_within / 2
    if sign == "lives":
        policy.lives(NEXT, heard_at)
    else:
        getattr(policy, sign)("a", heard_at)
    assert policy.check(asked_at + HANDOVER.answer_within) == NOTHING
    assert policy.due("b") == pytest.approx(heard_at + HANDOVER.silent_runs * 0.1), (
        "then it is asked anew"
    )


def test_a_word_of_one_process_does_not_put_off_the_question_to_another(
    policy: HandoverPolicy,
) -> None:
    hand(policy, "a", run=0.1)
    policy.handed_over("b", OTHER, 0.1, 0.0, together=False)
    policy.handed_over("c", OTHER, 0.1, 0.0, together=False)
    asked_at = policy.next_due
    policy.acked("b", asked_at / 2)
    assert policy.check(asked_at) == Check((NEXT,), ())


def test_a_process_of_long_runs_that_lives_and_is_late_rests_for_as_long_as_it_was_waited_for(
    policy: HandoverPolicy,
) -> None:
    """One run in a hundred takes longer: that must not store the next second of parcels."""
    now = waited = 0.0
    for number in range(HANDOVER.late_in_a_row):
        assert policy.accepts(OTHER, 0.1, now), f"after {number} in a row"
        now += 10.0
        waited = patience(policy, 0.1, now)
        now += waited
        assert policy.check(now).store == ("probe",)
    assert not policy.accepts(OTHER, 0.1, now + 0.99 * waited)
    assert policy.accepts(OTHER, 0.1, now + 1.01 * waited)


def test_a_process_of_short_runs_that_is_late_again_and_again_rests_for_a_second(
    policy: HandoverPolicy,
) -> None:
    """Its event loop waits for a processor, or it hangs."""
    now = late(policy, 0.0, HANDOVER.late_in_a_row)
    assert rest(policy, now) == pytest.approx(HANDOVER.hang_pause, rel=0.01)


def test_a_burst_that_is_late_is_late_once(policy: HandoverPolicy) -> None:
    for number in range(10):
        policy.handed_over(str(number), NEXT, 0.0, 0.0, together=True)
    assert len(policy.check(HANDOVER.crowded_patience).store) == 10
    assert policy.accepts(NEXT, 0.0, HANDOVER.crowded_patience)


def test_a_word_in_time_between_late_parcels_makes_their_count_begin_anew(
    policy: HandoverPolicy,
) -> None:
    now = 0.0
    for _ in range(5):
        now = late(policy, now, HANDOVER.late_in_a_row - 1)
        now = words(policy, 0.001, since=now)
    assert policy.accepts(NEXT, 0.0, now)


def test_an_answer_that_comes_when_nothing_is_held_changes_nothing(
    policy: HandoverPolicy,
) -> None:
    policy.lives(NEXT, 1.0)
    hand(policy, "a", run=0.1)
    policy.check(policy.next_due)
    policy.acked("a", 0.2)
    policy.lives(NEXT, 0.2)
    hand(policy, "b", run=0.1, now=1.0)
    assert policy.due("b") == pytest.approx(1.0 + HANDOVER.silent_runs * 0.1), "no question is open"


# --- whatever happens ---------------------------------------------------------------------

PEERS = st.sampled_from([NEXT, OTHER, "_INBOX.third"])
VERBS = ["acked", "answered", "refused", "dropped", "gone", "lives"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [*VERBS, "hand", "burst", "unreachable", "stored", "look", "look when due"]
        ),
        PEERS,
        st.integers(0, 40),  # which of the parcels so far
        st.floats(0.0, 0.2),  # seconds since the step before
        st.sampled_from([0.0, 0.001, 0.03, 0.3, 1.5]),  # seconds of a run
    ),
    max_size=80,
)


@given(STEPS, st.integers(0, 3))
def test_every_parcel_ends_once_whatever_happens(
    steps: list[tuple[str, str, int, float, float]], stage: int
) -> None:
    policy = HandoverPolicy(stage, 4)
    held: dict[str, tuple[str, float]] = {}  # to whom, and when
    handed, now = 0, 0.0

    def end(keys: tuple[str, ...]) -> None:
        assert len(set(keys)) == len(keys)
        for key in keys:
            del held[key]  # a `KeyError` where it had ended before

    for what, peer, which, pause, run in steps:
        now += pause
        key = f"parcel {which}"
        if what in ("hand", "burst"):
            if policy.accepts(peer, run, now):
                policy.handed_over(f"parcel {handed}", peer, run, now, what == "burst")
                held[f"parcel {handed}"] = (peer, now)
                handed += 1
        elif what in ("acked", "answered", "refused"):
            getattr(policy, what)(key, now)
            held.pop(key, None)
        elif what == "dropped":
            policy.dropped(key)
            held.pop(key, None)
        elif what == "gone":
            gone = policy.gone(peer, now)
            assert set(gone) == {k for k, (to, _) in held.items() if to == peer}
            end(gone)
        elif what in ("lives", "unreachable"):
            getattr(policy, what)(peer, now)
        elif what == "stored":
            policy.stored(now)
        else:
            if what == "look when due" and policy.next_due < inf:
                now = max(now, policy.next_due)
            ask, store = policy.check(now)
            end(store)
            assert set(ask) <= {to for to, _ in held.values()} | {peer for peer in ask if store}
            assert not policy.is_due(now), "a look leaves nothing to do at its moment"
        assert policy.in_flight == len(held) <= HANDOVER.most_in_flight
        assert policy.next_due == min(map(policy.due, held), default=inf)
        for k, (_, since) in held.items():
            assert policy.due(k) <= since + HANDOVER.most_patience + 1e-9
    end(policy.close())
    assert (held, policy.in_flight, policy.next_due) == ({}, 0, inf)
    assert not any(policy.accepts(peer, 0.0, now + 1e6) for peer in (NEXT, OTHER, "_INBOX.new"))


@given(STEPS)
def test_looks_alone_end_every_parcel_within_its_patience(
    steps: list[tuple[str, str, int, float, float]],
) -> None:
    policy = HandoverPolicy(1, 3)
    now = 0.0
    for number, (what, peer, _, pause, run) in enumerate(steps):
        now += pause
        policy.check(now)
        assert not policy.is_due(now), "a look leaves nothing to do at its moment"
        if policy.accepts(peer, run, now):
            policy.handed_over(str(number), peer, run, now, what == "burst")
    last, looks = now, 0
    while policy.in_flight:
        now = policy.next_due
        policy.check(now)
        looks += 1
        assert looks < 1000
    assert now <= last + HANDOVER.most_patience + 1e-9
