"""A figure is judged by the best of three ratios to a raw chain of the same moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.beside_raw_nats import ATTEMPTS, BesideRawNats


def of_a_machine(raw: list[float]) -> BesideRawNats:
    """A raw chain whose requests take so long, before and after one attempt after the other."""
    moments = iter(raw)
    return BesideRawNats(lambda requests: [next(moments)] * requests)


def figures(*seconds: float) -> tuple[list[float], Callable[[], float]]:
    """What is left to be measured, and what measures it."""
    left = list(seconds)
    return left, lambda: left.pop(0)


def test_a_figure_within_the_limit_is_measured_once() -> None:
    left, measure = figures(0.010, 9.0)
    assert of_a_machine([0.001] * 2).judge_now(measure, at_most=11) == pytest.approx(10)
    assert left == [9.0]


def test_a_slow_moment_is_forgiven_once_the_best_of_three_is_within_the_limit() -> None:
    left, measure = figures(0.9, 0.9, 0.010)
    assert of_a_machine([0.001] * 6).judge_now(measure, at_most=11) == pytest.approx(10)
    assert left == []


def test_a_machine_that_is_slow_for_both_changes_no_verdict() -> None:
    _, measure = figures(0.050)
    assert of_a_machine([0.005] * 2).judge_now(measure, at_most=11) == pytest.approx(10)


def test_a_figure_that_is_above_the_limit_each_time_fails_and_says_all_attempts() -> None:
    _, measure = figures(*[0.012] * ATTEMPTS)
    with pytest.raises(
        AssertionError, match=r"a hop: 12\.00 raw requests, at most 11; .*12\.00 ms"
    ):
        of_a_machine([0.001] * 2 * ATTEMPTS).judge_now(measure, at_most=11, what="a hop")


@pytest.mark.timing
def test_the_raw_chain_is_as_fast_as_itself(beside_raw_nats: BesideRawNats) -> None:
    itself = beside_raw_nats.raw_seconds
    assert beside_raw_nats.judge_now(itself, at_most=2, what="the raw chain itself") > 0.2
