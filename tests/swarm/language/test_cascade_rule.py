"""The rule of a cascade: who answers is a function of the first log probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.language.cascade import Cascade


@given(
    logs=st.lists(st.floats(-20, 0), min_size=1, max_size=9),
    below=st.floats(-20, 0),
    by=st.sampled_from(["mean", "least"]),
)
def test_whoever_is_unsure_at_a_threshold_is_unsure_at_each_higher_one(
    logs: list[float], below: float, by: str
) -> None:
    higher = Cascade("large", below / 2, by=by).is_unsure(logs)
    assert higher or not Cascade("large", below, by=by).is_unsure(logs)


def test_one_doubtful_token_counts_by_the_least_and_not_by_the_mean() -> None:
    logs = [-0.1, -0.1, -3.0, -0.1]
    assert Cascade("large", -1.0, by="least").is_unsure(logs)
    assert not Cascade("large", -1.0).is_unsure(logs)


@pytest.mark.parametrize(
    "fields", [{"large": ""}, {"tokens": 0}, {"by": "most"}, {"patience": 0.0}, {"below": 1.0}]
)
def test_a_rule_that_means_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="cascade"):
        Cascade(**{"large": "large", **fields})
