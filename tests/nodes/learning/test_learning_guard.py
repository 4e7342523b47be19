"""Which weights may serve, and which neighbour is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodes.learning.guard import IN_A_ROW, NeighbourGuard, may_serve, tolerance


def judged(guard: NeighbourGuard, own: float, near: dict[str, float], rounds: int) -> list[str]:
    refused: list[str] = []
    for _ in range(rounds):
        refused = guard.judge(own, near, 40)
    return refused


def test_weights_that_are_much_worse_may_not_serve() -> None:
    assert may_serve(0.9, 0.95, 100)
    assert may_serve(0.9, 0.88, 100)
    assert not may_serve(0.9, 0.6, 100)


def test_few_samples_judge_nobody() -> None:
    assert may_serve(1.0, 0.0, 7)
    assert judged(NeighbourGuard(), 1.0, {"a": 1.0, "b": 1.0}, 1) == []
    guard = NeighbourGuard()
    for _ in range(20):
        assert guard.judge(1.0, {"a": 1.0, "b": 0.0}, 7) == []


@given(st.integers(1, 10_000))
def test_more_samples_leave_less_room(samples: int) -> None:
    assert tolerance(samples + 1) <= tolerance(samples)
    assert tolerance(0) == 1.0


def test_a_neighbour_that_stays_far_worse_is_refused_and_only_that_one() -> None:
    near = {"good": 0.9, "also-good": 0.95, "hostile": 0.1}
    assert judged(NeighbourGuard(), 0.97, near, IN_A_ROW - 1) == []
    assert judged(NeighbourGuard(), 0.97, near, IN_A_ROW) == ["hostile"]


def test_one_good_round_clears_a_neighbour() -> None:
    guard = NeighbourGuard()
    bad, good = {"a": 0.9, "b": 0.9, "late": 0.2}, {"a": 0.9, "b": 0.9, "late": 0.8}
    judged(guard, 0.9, bad, IN_A_ROW - 1)
    judged(guard, 0.9, good, 1)
    assert judged(guard, 0.9, bad, IN_A_ROW - 1) == []


def test_a_neighbourhood_that_still_learns_refuses_nobody() -> None:
    near = {"a": 0.0, "b": 0.2, "c": 0.1}
    assert judged(NeighbourGuard(), 1.0, near, 50) == []
