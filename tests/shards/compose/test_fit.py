"""The threshold of a `choose`, fitted on any samples: NaN margins, ties, one class, none."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.compose.errors import CompositionError
from shards.compose.fit import (
    ChoiceScores,
    cheapest,
    curve,
    most_accurate,
    point,
    set_aside,
    wilson,
)
from shards.compose.measures import MeasureBound

# Few different ones, so that many are equal; and any that a tensor may hold.
MEASURES = st.sampled_from([0.0, -0.0, 1.0, 1.5, math.nan, math.inf, -math.inf]) | st.floats()
SAMPLES = st.lists(st.tuples(MEASURES, st.booleans(), st.booleans()), min_size=1, max_size=30)
COSTS = st.floats(0.01, 100.0)


def scores_of(
    samples: list[tuple[float, bool, bool]], then_ms: float = 2.0, otherwise_ms: float = 1.0
) -> ChoiceScores:
    measured, then, otherwise = zip(*samples, strict=True)
    right = np.array(then, bool), np.array(otherwise, bool)
    return ChoiceScores(np.array(measured, float), *right, then_ms, otherwise_ms)


@given(SAMPLES, st.booleans(), COSTS, COSTS)
def test_each_point_is_what_the_choice_does_with_its_threshold(
    samples: list[tuple[float, bool, bool]], below: bool, then_ms: float, otherwise_ms: float
) -> None:
    for each in curve(scores_of(samples, then_ms, otherwise_ms), below=below):
        assert math.isfinite(each.threshold), "JSON holds no other"
        condition = MeasureBound("value", below, each.threshold)
        takes = [condition.holds(np.array([measured])) for measured, _, _ in samples]
        right = [then if t else other for t, (_, then, other) in zip(takes, samples, strict=True)]
        assert (each.share, each.right) == (sum(takes) / len(samples), sum(right))
        mean = sum(then_ms if t else otherwise_ms for t in takes) / len(samples)
        assert math.isclose(each.cost_ms, mean)


@given(SAMPLES, st.booleans())
def test_the_share_never_falls_and_each_split_of_the_samples_has_a_point(
    samples: list[tuple[float, bool, bool]], below: bool
) -> None:
    found = curve(scores_of(samples), below=below)
    shares = [each.share for each in found]
    assert all(one < other for one, other in itertools.pairwise(shares))
    finite = {measured for measured, _, _ in samples if math.isfinite(measured)}
    # Nothing finite lies beyond the largest number of all.
    last = max((each if below else -each for each in finite), default=0.0)
    assert len(found) == len(finite) + (last != sys.float_info.max)


@given(SAMPLES, st.booleans(), st.floats(0, 1))
def test_an_accuracy_is_reached_at_least_cost_or_the_best_is_told(
    samples: list[tuple[float, bool, bool]], below: bool, accuracy: float
) -> None:
    points = curve(scores_of(samples), below=below)
    enough = [each for each in points if each.accuracy >= accuracy]
    if not enough:
        with pytest.raises(CompositionError, match=f"{max(p.accuracy for p in points):.4f}"):
            cheapest(points, accuracy, "label")
        return
    chosen = cheapest(points, accuracy, "label")
    assert chosen.accuracy >= accuracy
    assert chosen.cost_ms == min(each.cost_ms for each in enough)


@given(SAMPLES, st.booleans(), COSTS, COSTS, COSTS)
def test_a_cost_is_kept_at_most_accuracy_or_the_best_is_told(
    samples: list[tuple[float, bool, bool]], below: bool, then: float, other: float, cost: float
) -> None:
    points = curve(scores_of(samples, then, other), below=below)
    cheap = [each for each in points if each.cost_ms <= cost]
    if not cheap:
        with pytest.raises(CompositionError, match="ms or less: the best is"):
            most_accurate(points, cost, "label")
        return
    chosen = most_accurate(points, cost, "label")
    assert chosen.cost_ms <= cost
    assert chosen.right == max(each.right for each in cheap)


def test_samples_without_measures_and_no_samples() -> None:
    (only,) = curve(scores_of([(math.nan, True, False), (math.inf, True, False)]), below=True)
    assert (only.share, only.accuracy) == (0.0, 0.0)
    with pytest.raises(CompositionError, match="no samples"):
        curve(ChoiceScores(*(np.zeros(0),) * 3, 1.0, 1.0), below=True)


@given(st.integers(1, 500), st.floats(0, 0.9))
def test_each_sample_is_fitted_on_or_held_out(count: int, share: float) -> None:
    fitted, held = set_aside(count, share)
    assert sorted([*fitted, *held]) == list(range(count))
    assert len(fitted) >= 1
    assert abs(len(held) - count * share) <= 1


def test_what_is_held_out_is_judged_as_it_is() -> None:
    scores = scores_of([(0.1, True, False), (0.2, False, True), (3.0, False, True)])
    fitted, held = scores.only(np.array([0, 2])), scores.only(np.array([1]))
    chosen = cheapest(curve(fitted, below=True), 1.0)
    assert chosen.accuracy == 1.0
    assert point(held, chosen.threshold, below=True).accuracy == 0.0


@given(st.integers(0, 300), st.integers(1, 300))
def test_an_interval_holds_its_share(right: int, of: int) -> None:
    right = min(right, of)
    low, high = wilson(right, of)
    assert 0.0 <= low <= right / of + 1e-12
    assert right / of - 1e-12 <= high <= 1.0
    assert low < high


def test_the_interval_is_the_published_one() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    # R's binom.confint(95, 100, methods="wilson").
    assert wilson(95, 100) == pytest.approx((0.8882495, 0.9784586), abs=1e-5)
