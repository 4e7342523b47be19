from itertools import accumulate
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.flow.latency import BUCKETS_S, LONGEST_S, SHORTEST_S, LatencyWindow

durations = st.floats(SHORTEST_S, LONGEST_S)


@settings(max_examples=60, deadline=None)
@given(st.lists(durations, min_size=1, max_size=200), st.floats(0, 1))
def test_a_percentile_is_within_the_documented_error_of_the_nearest_rank(
    samples: list[float], q: float
) -> None:
    window = LatencyWindow(relative_error=0.02)
    for sample in samples:
        window.add(sample, now=1.0)
    exact = sorted(samples)[max(1, ceil(q * len(samples))) - 1]
    assert window.percentile(q, now=1.0) == pytest.approx(exact, rel=0.0201)


def test_samples_older_than_the_window_are_forgotten() -> None:
    window = LatencyWindow(window_s=10)
    for tick in range(100):
        window.add(0.5, now=tick / 100)
    for tick in range(100):
        window.add(0.001, now=12 + tick / 100)
    assert window.percentile(1.0, now=13.0) == pytest.approx(0.001, rel=0.03)
    assert window.count == 100


def test_a_sample_lives_for_at_least_all_but_one_slice_of_the_window() -> None:
    window = LatencyWindow(window_s=6)
    window.add(0.1, now=0.99)
    window.percentile(0.5, now=5.9)
    assert window.count == 1
    assert window.percentile(0.5, now=7.1, default=-1.0) == -1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), durations), max_size=80))
def test_the_count_is_never_negative_and_an_empty_window_gives_the_default(
    steps: list[tuple[float, float]],
) -> None:
    window, now = LatencyWindow(window_s=3), 0.0
    for step, sample in steps:
        now += step
        window.add(sample, now)
        assert window.count >= 1
    assert window.percentile(0.99, now + 100, default=7.0) == 7.0
    assert window.count == 0


def test_the_ewma_averages_the_first_samples_and_then_follows() -> None:
    window = LatencyWindow()
    window.add(0.010, 0.0)
    assert window.ewma == pytest.approx(0.010)
    window.add(0.020, 0.0)
    assert window.ewma == pytest.approx(0.015)
    for _ in range(200):
        window.add(0.100, 0.0)
    assert window.ewma == pytest.approx(0.100, rel=0.01)


def test_extreme_durations_are_counted_at_the_ends_and_nan_is_refused() -> None:
    window = LatencyWindow()
    for sample in (-1.0, 0.0, 1e-12, float("inf"), 1e9):
        window.add(sample, 0.0)
    assert window.percentile(0.0, 0.0) == pytest.approx(SHORTEST_S, rel=0.05)
    assert window.percentile(1.0, 0.0) == pytest.approx(LONGEST_S, rel=0.05)
    with pytest.raises(ValueError, match="NaN"):
        window.add(float("nan"), 0.0)
    assert window.count == 5
    assert window.ewma >= 0


def test_a_percentile_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match="fraction"):
        LatencyWindow().percentile(99, 0.0)


def test_a_clock_that_steps_back_loses_nothing() -> None:
    window = LatencyWindow(window_s=10)
    window.add(0.1, 100.0)
    window.add(0.1, 50.0)
    assert window.percentile(0.5, 60.0) == pytest.approx(0.1, rel=0.03)
    assert window.count == 2


def test_a_tail_of_one_percent_shows_at_p999_and_not_at_p50() -> None:
    rng, window = Random(3), LatencyWindow(window_s=1000)
    for _ in range(5000):
        window.add(0.2 if rng.random() < 0.01 else 0.004, now=0.0)
    assert window.percentile(0.5, 0.0) == pytest.approx(0.004, rel=0.03)
    assert window.percentile(0.999, 0.0) == pytest.approx(0.2, rel=0.03)


@given(st.lists(st.tuples(st.floats(0, 5), durations), max_size=80))
def test_all_samples_since_the_start_stay_counted_in_their_buckets(
    steps: list[tuple[float, float]],
) -> None:
    window, now = LatencyWindow(), 0.0
    for pause, seconds in steps:
        now += pause
        window.add(seconds, now)
    counts, total = window.since_start()
    kept = [min(max(seconds, SHORTEST_S), LONGEST_S) for _, seconds in steps]
    assert len(counts) == len(BUCKETS_S) + 1
    assert sum(counts) == len(steps)
    assert total == pytest.approx(sum(kept), rel=0.03)
    for bound, below in zip(BUCKETS_S, accumulate(counts), strict=False):
        least = sum(seconds <= bound / 1.05 for seconds in kept)
        most = sum(seconds <= bound * 1.05 for seconds in kept)
        assert least <= below <= most
