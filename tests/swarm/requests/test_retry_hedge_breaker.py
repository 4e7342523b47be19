import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from swarm.requests.breaker import (
    CONSECUTIVE,
    MIN_CALLS,
    OPEN_S,
    PROBE_TIMEOUT_S,
    Breaker,
    BreakerState,
)
from swarm.requests.retry import Hedger, RetryBudget

CLOSED, OPEN, HALF = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=300),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 1.0]),
)
def test_retries_never_exceed_their_share_of_the_traffic(
    steps: list[tuple[float, bool]], ratio: float, reserve: float
) -> None:
    budget, now = RetryBudget(ratio, min_per_s=reserve, window_s=10), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for step, is_request in steps:
        now += step
        if is_request:
            budget.on_requests(1, now)
            requests.append(now)
        elif budget.try_retry(now):
            retries.append(now)
            asked = sum(at >= now - 10.0 for at in requests)
            granted = sum(at > now - 9.0 + 1e-6 for at in retries)
            assert granted <= ratio * asked + reserve * 10 + 1e-6


def test_a_total_outage_adds_only_the_ratio_to_the_load() -> None:
    budget, retries = RetryBudget(0.1, min_per_s=1), 0
    for tick in range(20_000):  # 1000 requests a second, all of which fail and want 3 retries
        now = tick / 1000
        budget.on_requests(1, now)
        retries += sum(budget.try_retry(now) for _ in range(3))
    assert retries <= 0.1 * 20_000 + 3 * 10


def test_a_quiet_client_may_retry() -> None:
    budget = RetryBudget(0.1, min_per_s=1, window_s=10)
    budget.on_requests(1, 0.0)
    assert budget.try_retry(0.0)


def test_a_retry_budget_comes_back_with_traffic() -> None:
    budget = RetryBudget(0.5, min_per_s=0)
    assert not budget.try_retry(0.0)
    budget.on_requests(1, 0.0)
    assert not budget.try_retry(0.0)
    budget.on_requests(1, 0.0)
    assert budget.try_retry(0.0)
    assert not budget.try_retry(0.0)


def opened(at: float = 0.0) -> Breaker:
    """By failures in a row."""
    made = Breaker()
    for _ in range(CONSECUTIVE):
        made.record(False, at, at)
    return made


def test_a_breaker_opens_after_failures_in_a_row_and_lets_nothing_pass() -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE - 1):
        breaker.record(False, 0.0)
    assert breaker.try_call(0.0)
    breaker.record(False, 0.0)
    assert breaker.state is OPEN
    assert not breaker.try_call(OPEN_S - 0.01)


def test_a_success_in_between_keeps_it_closed() -> None:
    breaker = Breaker()
    for _ in range(30):
        breaker.record(False, 0.0)
        breaker.record(True, 0.0)
        breaker.record(True, 0.0)
        assert breaker.state is CLOSED


def test_a_breaker_opens_at_the_failure_rate_only_once_enough_calls_were_seen() -> None:
    breaker = Breaker()
    for index in range(MIN_CALLS - 1):
        breaker.record(index % 2 == 0, 0.0)
    assert breaker.state is CLOSED
    breaker.record(False, 0.0)
    assert breaker.state is OPEN


def test_exactly_one_probe_passes_while_half_open() -> None:
    breaker = opened()
    assert [breaker.try_call(0.5) for _ in range(5)] == [True, False, False, False, False]
    assert breaker.state is HALF


def test_a_good_probe_closes_it_and_a_bad_one_doubles_the_pause() -> None:
    breaker = opened()
    assert breaker.try_call(0.5)
    breaker.record(False, 0.6)
    assert not breaker.try_call(1.5)
    assert breaker.try_call(1.6)
    breaker.record(False, 1.7)
    assert not breaker.try_call(2.6)
    assert breaker.try_call(2.7)  # 1 s, not 2: the longest pause
    breaker.record(True, 2.8)
    assert breaker.state is CLOSED
    assert breaker.try_call(2.8)
    for _ in range(CONSECUTIVE):
        breaker.record(False, 7.0)
    assert breaker.try_call(7.5)  # the pause is short again


def test_an_answer_from_before_the_probe_says_nothing() -> None:
    breaker = opened()
    breaker.record(True, 0.4, started=-1.0)
    assert breaker.state is OPEN
    assert breaker.try_call(1.0)
    breaker.record(True, 1.1, started=0.0)
    assert breaker.state is HALF
    breaker.record(True, 1.2, started=1.0)
    assert breaker.state is CLOSED


def test_a_probe_that_is_never_answered_does_not_block_for_ever() -> None:
    breaker = opened()
    assert breaker.try_call(1.0)
    assert not breaker.try_call(1.0 + PROBE_TIMEOUT_S)
    assert breaker.state is OPEN
    assert breaker.try_call(5.0)


LEGAL = {(CLOSED, OPEN), (OPEN, HALF), (HALF, OPEN), (HALF, CLOSED)}


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.sampled_from(["try", "ok", "fail", "fail"])), max_size=200
    )
)
def test_only_legal_transitions_happen(
    steps: list[tuple[float, str]],
) -> None:
    breaker, now, state = Breaker(), 0.0, CLOSED
    for step, what in steps:
        now += step
        if what == "try":
            breaker.try_call(now)
        else:
            breaker.record(what == "ok", now)
        assert breaker.state is state or (state, breaker.state) in LEGAL
        state = breaker.state


@given(
    st.lists(
        st.tuples(
            st.floats(0, 3),
            st.sampled_from(["try", "blocks", "ok", "fail", "fail"]),
            st.one_of(st.none(), st.floats(0, 3)),  # seconds ago that the call was made
        ),
        max_size=100,
    ),
    st.floats(0, 10),
)
def test_a_breaker_blocks_exactly_when_it_would_refuse_a_call(
    steps: list[tuple[float, str, float | None]], later: float
) -> None:
    breaker, now = Breaker(), 0.0
    for step, what, ago in [*steps, (later, "blocks", None)]:
        now += step
        before = pickle.dumps(breaker)
        blocked = breaker.blocks(now)
        assert pickle.dumps(breaker) == before
        assert blocked == (not copy.deepcopy(breaker).try_call(now))
        if what == "try":
            breaker.try_call(now)
        elif what != "blocks":
            breaker.record(what == "ok", now, None if ago is None else now - ago)


def test_a_probe_that_succeeds_late_closes_the_breaker_and_an_older_call_does_not() -> None:
    """Where every answer takes longer than the probe's timeout it would stay open for ever."""
    breaker = opened(10.0)
    assert breaker.try_call(11.0)
    assert not breaker.try_call(12.5), "the probe ran out"
    assert breaker.state is BreakerState.OPEN
    breaker.record(True, 12.6, 9.5)
    assert breaker.state is BreakerState.OPEN, "a call of before it opened"
    breaker.record(True, 12.7, 11.0)
    assert breaker.state is BreakerState.CLOSED


def test_a_hedge_waits_for_the_percentile_and_for_enough_samples() -> None:
    hedger = Hedger(min_samples=20)
    assert hedger.delay_s(0.020, 100, remaining_s=0.1, p50_s=0.005) == 0.020
    assert hedger.delay_s(0.020, 19, remaining_s=0.1, p50_s=0.005) is None
    assert hedger.delay_s(1e-6, 100, remaining_s=0.1, p50_s=0.005) == 0.001


def test_a_hedge_that_could_not_answer_in_time_is_not_sent() -> None:
    assert Hedger().delay_s(0.090, 100, remaining_s=0.1, p50_s=0.020) is None


def test_hedges_stay_within_their_fraction_even_when_everything_is_slow() -> None:
    hedger, hedged = Hedger(fraction=0.05), 0
    for tick in range(1000):
        hedger.on_request(tick / 1000)
        hedged += hedger.try_hedge(tick / 1000)
    assert 45 <= hedged <= 50
