"""A node says that it is slow only where it stays so, and takes it back as carefully."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.slowing import FORGET_AFTER, SLOW_FOR, SLOW_FROM, Slowing, each_run


def after(slowing: Slowing, ratio: float | None, seconds: float, began: float = 0.0) -> float:
    factor = slowing.factor
    for second in range(int(seconds) + 1):
        factor = slowing.observe(ratio, began + second)
    return factor


def test_a_node_that_stays_slow_says_so_by_the_least_that_was_seen() -> None:
    slowing = Slowing()
    assert after(slowing, 4.0, SLOW_FOR - 1) == 1.0
    assert slowing.observe(3.0, SLOW_FOR) == 3.0
    assert after(slowing, 1.8, 60, 100) == 3.0, "that is no return"
    assert after(slowing, 1.1, SLOW_FOR, 200) == 1.0


def test_a_node_without_requests_gets_another_try() -> None:
    slowing = Slowing()
    after(slowing, 4.0, SLOW_FOR)
    assert after(slowing, None, FORGET_AFTER - 20, 20) == 4.0
    assert after(slowing, None, FORGET_AFTER, 20) == 1.0


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=200))
def test_one_quick_look_in_each_span_is_enough_to_say_nothing(ratios: list[float]) -> None:
    slowing = Slowing()
    for second, ratio in enumerate(ratios):
        calm = second % int(SLOW_FOR) == 0
        assert slowing.observe(min(ratio, SLOW_FROM) if calm else ratio, float(second)) == 1.0


def test_requests_of_a_batch_share_its_run() -> None:
    assert each_run([]) == each_run([7, 0]) == 1.0
    assert each_run([0, 0, 8]) == 4.0
    assert each_run([2, 2]) == 4 / 3
