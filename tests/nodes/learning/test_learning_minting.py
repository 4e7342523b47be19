"""Who makes the next weight version, and when."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodes.learning.minting import is_due, is_news, rank

NAMES = st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=9)


@given(NAMES, st.integers(1, 99))
def test_learners_agree_on_the_order_without_a_word(names: set[str], n: int) -> None:
    places = [rank("m", "1", n, name, names) for name in sorted(names)]
    assert sorted(places) == list(range(len(names)))


def test_the_turn_goes_round() -> None:
    names = {f"learner-{number}" for number in range(8)}
    first = {next(x for x in names if rank("m", "1", n, x, names) == 0) for n in range(1, 100)}
    assert first == names


def test_a_node_that_knows_no_other_learner_is_the_first() -> None:
    assert rank("m", "1", 1, "me", frozenset()) == 0


def test_each_further_place_waits_a_grace_longer() -> None:
    assert [is_due(10.0, 10.0, 2.0, place) for place in (0, 1)] == [True, False]
    assert [is_due(13.9, 10.0, 2.0, place) for place in (0, 1, 2)] == [True, True, False]


def test_weights_that_hardly_moved_are_no_news() -> None:
    present = {"w": np.ones((4, 4), np.float32)}
    assert not is_news(present, {"w": present["w"] * np.float32(1.0001)})
    assert is_news(present, {"w": present["w"] * np.float32(1.1)})
    zero = {"w": np.zeros((4, 4), np.float32)}
    assert not is_news(zero, zero)
    assert is_news(zero, present)
