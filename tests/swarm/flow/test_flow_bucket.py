from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow import bucket
from swarm.flow.bucket import Quotas, Spending, TokenBucket


@given(
    st.floats(0, 100),
    st.floats(0.5, 50),
    st.lists(st.tuples(st.floats(-1, 2), st.floats(0.1, 5)), max_size=100),
)
def test_a_bucket_never_holds_more_than_its_burst_nor_less_than_nothing(
    rate: float, burst: float, steps: list[tuple[float, float]]
) -> None:
    held, now = TokenBucket(rate, burst), 0.0
    for step, amount in steps:
        now += step
        held.take(now, amount)
        assert 0 <= held.tokens(now) <= burst


@given(st.floats(0, 100), st.floats(1, 50), st.lists(st.floats(0, 0.2), max_size=200))
def test_no_more_is_ever_admitted_than_burst_plus_rate_times_time(
    rate: float, burst: float, steps: list[float]
) -> None:
    held, now, taken = TokenBucket(rate, burst), 0.0, 0
    held.tokens(0.0)
    for step in steps:
        now += step
        taken += held.take(now)
    assert taken <= burst + rate * now + 1e-6


def test_a_rogue_agent_does_not_starve_the_others() -> None:
    quotas = Quotas(rate=10, burst=10)
    rogue = honest = 0
    for tick in range(10_000):
        now = tick / 1000
        rogue += quotas.admit("rogue", now)
        if tick % 125 == 0:
            honest += quotas.admit("honest", now)
    assert honest == 80
    assert rogue <= 111


def test_inventing_names_neither_grows_memory_nor_evicts_an_active_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket, "MAX_AGENTS", 100)
    monkeypatch.setattr(bucket, "NEWCOMERS_PER_S", 10.0)
    quotas = Quotas(rate=2, burst=2)
    assert quotas.admit("honest", 0.0)
    admitted = 0
    for tick in range(1, 20_000):
        now = tick / 1000
        admitted += quotas.admit(f"invented-{tick}", now)
        if tick % 1000 == 0:
            assert quotas.admit("honest", now)
        assert len(quotas) <= 100
    assert admitted <= 10 + 10 * 20 + 1


def test_a_rate_that_is_no_number_is_refused_when_given_not_when_used() -> None:
    with pytest.raises(ValueError, match="rate"):
        TokenBucket(float("nan"), 1)


@given(st.floats(0.5, 100), st.lists(st.tuples(st.floats(0, 3), st.floats(1, 500)), max_size=60))
def test_who_spends_more_than_its_rate_waits_until_its_debt_is_paid_off(
    rate: float, steps: list[tuple[float, float]]
) -> None:
    spending, now, spent, largest = Spending(burst=10.0), 0.0, 0.0, 0.0
    for step, amount in steps:
        now += step
        if not spending.owes("a", now):
            spending.spend("a", rate, amount, now)
            spent, largest = spent + amount, max(largest, amount)
        if wait := spending.owes("a", now):
            assert not spending.owes("a", now + wait)
        assert spent <= rate * (10.0 + now) + largest + 1e-6
    assert not spending.owes("b", now)


def test_an_agent_over_its_quota_is_told_when_it_is_within_it_again() -> None:
    quotas = Quotas(rate=4.0, burst=2.0)
    assert [quotas.admit("a", 0.0) for _ in range(3)] == [True, True, False]
    wait = quotas.wait("a", 0.0)
    assert wait == pytest.approx(0.25)
    assert not quotas.admit("a", wait * 0.9)
    assert quotas.admit("a", wait)
    assert quotas.wait("b", 0.0) == 0.0
    assert TokenBucket(0.0, 1.0).wait(0.0, 2.0) == inf


def test_of_many_agents_the_one_seen_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket, "MAX_AGENTS", 2)
    spending = Spending()
    for agent in "aba":
        spending.spend(agent, 1.0, 50.0, 0.0)
    spending.spend("c", 1.0, 50.0, 0.0)
    assert [bool(spending.owes(agent, 0.0)) for agent in "abc"] == [True, False, True]
