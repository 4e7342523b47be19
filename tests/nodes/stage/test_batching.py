from collections.abc import Sequence
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.stage.batching import ArrivalRate, BatchLimit, split_on_failure, waits_until

BUSY = {"max_batch": 8, "max_wait_s": 0.005, "arrivals_per_s": 2000.0, "run_s": 0.010}


@given(
    st.integers(1, 40), st.floats(0, 10), st.integers(1, 16), st.floats(0, 0.05),
    st.floats(0, 5000), st.floats(0, 1),
)  # fmt: skip
def test_a_wait_ends_in_time_and_a_full_batch_never_waits(
    queued: int, oldest: float, largest: int, wait: float, rate: float, run_s: float
) -> None:
    until = waits_until(
        queued, oldest, 10.0,
        max_batch=largest, max_wait_s=wait, arrivals_per_s=rate, run_s=run_s,
    )  # fmt: skip
    if until is not None:
        assert 10.0 < until <= oldest + wait
        assert queued < largest


@given(st.integers(1, 40), st.floats(0, 0.05), st.floats(0.0001, 0.1))
def test_a_lane_with_less_than_one_arrival_per_run_never_waits(
    queued: int, wait: float, run_s: float
) -> None:
    rare = {"max_batch": 8, "max_wait_s": wait, "arrivals_per_s": 0.99 / run_s, "run_s": run_s}
    assert waits_until(queued, 10.0, 10.0, **rare) is None  # type: ignore[arg-type]


def test_a_busy_lane_waits_for_a_companion_but_never_beyond_the_bound() -> None:
    busy = BUSY | {"max_wait_s": 0.002}
    assert waits_until(1, 10.0, 10.0, **busy) == pytest.approx(10.001)  # type: ignore[arg-type]
    assert waits_until(1, 10.0, 10.0019, **busy) is None  # type: ignore[arg-type]


def test_the_more_are_queued_the_less_it_waits_for_one_more() -> None:
    busy = BUSY | {"max_batch": 32, "arrivals_per_s": 500.0}
    assert waits_until(4, 10.0, 10.0, **busy) is not None  # type: ignore[arg-type]
    assert waits_until(5, 10.0, 10.0, **busy) is None  # type: ignore[arg-type]


def test_the_arrival_rate_follows_the_gaps_and_falls_in_silence() -> None:
    rate = ArrivalRate()
    assert rate.per_s(0.0) == 0.0
    for tick in range(200):
        rate.add(tick / 100)
    assert rate.per_s(2.0) == pytest.approx(100, rel=0.02)
    assert rate.per_s(12.0) == pytest.approx(0.1, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 0.1)), max_size=200))
def test_the_batch_limit_stays_between_one_and_the_largest(runs: list[tuple[int, float]]) -> None:
    limit = BatchLimit(32)
    for batch, took in runs:
        limit.ran(batch, took)
        assert 1 <= limit.size <= 32


def test_the_batch_limit_finds_what_the_device_can_do() -> None:
    limit = BatchLimit(64)
    sizes = []
    for _ in range(200):
        limit.ran(limit.size, 0.002 + 0.001 * limit.size)  # 18 fit the target
        sizes.append(limit.size)
    assert max(sizes[50:]) <= 19
    assert min(sizes[50:]) >= 13


@given(st.integers(1, 64), st.data())
def test_a_poison_member_is_found_and_every_other_is_served(size: int, data: st.DataObject) -> None:
    poison = data.draw(st.integers(0, size - 1))
    served: list[int] = []
    runs = 0

    def run(batch: Sequence[int]) -> list[int]:
        nonlocal runs
        runs += 1
        if poison not in batch:
            served.extend(batch)
            return []
        halves = split_on_failure(batch)
        return list(batch) if halves is None else [bad for half in halves for bad in run(half)]

    assert run(range(size)) == [poison]
    assert sorted(served) == [member for member in range(size) if member != poison]
    assert runs <= 1 + 2 * ceil(log2(size)) if size > 1 else runs == 1


def test_an_empty_batch_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="empty"):
        split_on_failure([])


@pytest.mark.parametrize(
    ("fixed", "each", "shortest"),
    [(0.0, 0.003, 1), (0.001, 0.0005, 7), (0.001, 0.02, 1), (0.0001, 0.001, 2), (0.002, 0.0, 8)],
)
def test_the_shortest_batch_that_pays_is_known_from_runs(
    fixed: float, each: float, shortest: int
) -> None:
    limit = BatchLimit(8)
    assert limit.shortest == 8  # nothing is known
    for size in range(8, 0, -1):
        for _ in range(4):
            limit.ran(size, fixed + each * size)
        limit.size = 8
    assert limit.shortest == shortest


@given(st.lists(st.tuples(st.integers(1, 32), st.floats(0, 0.1)), max_size=100))
def test_the_shortest_batch_is_within_the_limit(runs: list[tuple[int, float]]) -> None:
    limit = BatchLimit(32)
    for batch, took in runs:
        limit.ran(batch, took)
        assert 1 <= limit.shortest <= limit.size
