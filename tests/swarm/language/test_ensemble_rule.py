"""The rule of an ensemble: what the likeliest tokens decide is what all of them would decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.language.ensemble import Ensemble, likeliest

SCORES = st.lists(st.tuples(st.integers(-40, 40), st.integers(-40, 40)), min_size=1, max_size=40)


def logs(scores: list[int]) -> np.ndarray:
    halves = np.array(scores, np.float64) / 8  # few values: many are equal
    return np.asarray(halves - np.log(np.exp(halves).sum()))


def ranked(of: np.ndarray, count: int) -> list[tuple[int, float]]:
    order = np.argsort(-of, kind="stable")[:count]
    return [(int(token), float(of[token])) for token in order]


@given(SCORES, st.integers(1, 50))
def test_the_likeliest_tokens_decide_as_all_would_or_not_at_all(
    scores: list[tuple[int, int]], count: int
) -> None:
    first, second = (logs([pair[at] for pair in scores]) for at in (0, 1))
    found = likeliest((ranked(first, count), ranked(second, count)), count)
    mean = np.exp(first) + np.exp(second)
    if found is not None:
        assert found == int(mean.argmax()) or np.isclose(mean[found], mean.max(), rtol=1e-12)
    assert found is not None or count <= len(scores)


def test_a_token_that_neither_model_prefers_can_be_the_likeliest() -> None:
    first = [(0, np.log(0.5)), (2, np.log(0.4)), (1, np.log(0.1))]
    second = [(1, np.log(0.5)), (2, np.log(0.4)), (0, np.log(0.1))]
    assert likeliest((first, second), 3) == 2
    assert likeliest((first[:2], second[:2]), 2) is None
    assert likeliest((first[:1], second[:1]), 1) is None


def test_one_list_that_is_sure_decides_by_few_tokens() -> None:
    sure, flat = [(7, np.log(0.9)), (1, np.log(0.01))], [(3, np.log(0.02)), (4, np.log(0.02))]
    assert likeliest((sure, flat), 2) == 7


@pytest.mark.parametrize("rule", [("",), ("m", 0), ("m", 1025), ("m", 8, 0.0)])
def test_a_rule_that_means_nothing_is_refused(rule: tuple[object, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"^ensemble: "):
        Ensemble(*rule)  # type: ignore[arg-type]
