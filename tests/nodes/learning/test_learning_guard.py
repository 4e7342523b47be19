"""Which weights may serve, and which neighbour is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodes.learning.guard import (
    AGAIN_AFTER,
    CALM,
    GRACE,
    IN_A_ROW,
    LearningGuard,
    WeightsVerdict,
    may_serve,
    tolerance,
)

GOOD = {"a": 0.9, "b": 0.95, "c": 0.92}
SAMPLES = 40


def judged(
    guard: LearningGuard, own: float, near: dict[str, float], rounds: int
) -> list[WeightsVerdict]:
    return [guard.judge(own, near, SAMPLES) for _ in range(rounds)]


def refused(verdicts: list[WeightsVerdict]) -> set[str]:
    return {name for verdict in verdicts for name in verdict.refuse}


def test_weights_that_are_much_worse_may_not_serve() -> None:
    assert may_serve(0.9, 0.95, 100)
    assert may_serve(0.9, 0.88, 100)
    assert not may_serve(0.9, 0.6, 100)


def test_few_samples_judge_nobody() -> None:
    assert may_serve(1.0, 0.0, 7)
    guard = LearningGuard()
    for _ in range(2 * GRACE):
        assert guard.judge(1.0, {"a": 1.0, "b": 0.0}, 7) == WeightsVerdict()


@given(st.integers(1, 10_000))
def test_more_samples_leave_less_room(samples: int) -> None:
    assert tolerance(samples + 1) <= tolerance(samples)
    assert tolerance(0) == 1.0


def test_a_neighbour_that_turns_bad_is_refused_soon_and_only_that_one() -> None:
    guard = LearningGuard()
    assert refused(judged(guard, 0.97, GOOD, 3)) == set()
    turned = GOOD | {"b": 0.1}
    assert refused(judged(guard, 0.97, turned, IN_A_ROW - 1)) == set()
    assert refused(judged(guard, 0.97, turned, 1)) == {"b"}


def test_a_neighbour_that_was_never_good_gets_time_to_learn() -> None:
    guard = LearningGuard()
    late = GOOD | {"late": 0.1}
    assert refused(judged(guard, 0.9, late, GRACE - 1)) == set()
    assert refused(judged(guard, 0.9, late, 1)) == {"late"}


def test_one_good_round_clears_a_neighbour() -> None:
    guard = LearningGuard()
    judged(guard, 0.9, GOOD, 1)
    for _ in range(5):
        assert refused(judged(guard, 0.9, GOOD | {"a": 0.2}, IN_A_ROW - 1)) == set()
        judged(guard, 0.9, GOOD | {"a": 0.8}, 1)


def test_a_neighbourhood_that_still_learns_refuses_nobody_and_reverts_nothing() -> None:
    near = {"a": 0.0, "b": 0.2, "c": 0.1}
    assert set(judged(LearningGuard(), 1.0, near, 2 * GRACE)) == {WeightsVerdict()}


def test_own_weights_that_fall_are_reverted_once_and_not_each_round() -> None:
    guard = LearningGuard()
    assert [v.good for v in judged(guard, 0.95, GOOD, CALM)] == [False] * (CALM - 1) + [True]
    fallen = judged(guard, 0.3, GOOD, AGAIN_AFTER)
    assert [v.revert for v in fallen] == [True] + [False] * (AGAIN_AFTER - 1)
    assert not any(v.good for v in fallen)
    assert judged(guard, 0.3, GOOD, 1)[0].revert


def test_learning_other_classes_may_cost_a_little_on_the_own_ones() -> None:
    guard = LearningGuard()
    verdicts = judged(guard, 1.0, GOOD, CALM) + judged(guard, 0.85, GOOD, 50)
    assert not any(v.revert for v in verdicts)


def test_after_going_back_everything_is_judged_anew() -> None:
    guard = LearningGuard()
    judged(guard, 0.97, GOOD, CALM)
    guard.forget()
    assert set(judged(guard, 0.2, dict.fromkeys(GOOD, 0.2), 20)) == {WeightsVerdict()}
