"""A fleet says about a hundred statuses a second, however large it is, and readers know it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.fleet.status_interval import (
    DOCUMENTS_PER_SECOND,
    LARGEST_REQUEST,
    LONGEST_BELIEVED,
    MISSED,
    MOST_EVERY,
    MOST_WITHIN,
    SMALL_FLEET,
    STATUS_EVERY,
    answer_after,
    asked_within,
    every_of,
    request_body,
    silent_after,
    status_every,
)
from swarm.periodic import BEAT

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.integers(0, 100))
def test_up_to_a_hundred_nodes_each_one_speaks_each_second(nodes: int) -> None:
    assert status_every(nodes) == STATUS_EVERY == 1.0


@given(st.integers(1, 1000))
def test_up_to_a_thousand_nodes_together_say_a_hundred_documents_a_second_at_the_most(
    nodes: int,
) -> None:
    every = status_every(nodes)
    assert nodes / every <= DOCUMENTS_PER_SECOND * (1 + 1e-9)
    if nodes >= DOCUMENTS_PER_SECOND:
        assert every < nodes / DOCUMENTS_PER_SECOND + BEAT, "and not many fewer"


@given(st.integers(0, 100_000), st.integers(0, 1000))
def test_a_larger_fleet_speaks_no_more_often_and_no_fleet_falls_silent(
    nodes: int, more: int
) -> None:
    every = status_every(nodes)
    assert STATUS_EVERY <= every <= status_every(nodes + more) <= MOST_EVERY
    assert round(every / BEAT, 6).is_integer(), "periodic work shares turns of the loop"


@given(st.integers(0, 100_000))
def test_a_reader_believes_what_a_node_says_of_its_pace(nodes: int) -> None:
    every = status_every(nodes)
    read = json.loads(json.dumps({"every_s": every}))
    assert every_of(read) == every
    assert silent_after(read) == MISSED * every


@given(ANY_JSON)
def test_a_pace_that_cannot_be_is_bounded(told: object) -> None:
    assert STATUS_EVERY <= every_of({"every_s": told}) <= LONGEST_BELIEVED


@pytest.mark.parametrize("told", [None, "10", True, [10], -5, 0, 0.2, float("nan")])
def test_a_damaged_pace_counts_as_none(told: object) -> None:
    assert every_of({"every_s": told}) == every_of({}) == STATUS_EVERY


@pytest.mark.parametrize("told", [1e9, 10**400, float("inf")])
def test_a_member_that_lies_about_its_pace_is_believed_for_half_a_minute(told: float) -> None:
    assert every_of({"every_s": told}) == LONGEST_BELIEVED


@given(st.floats(0, MOST_WITHIN))
def test_the_time_of_a_request_comes_as_it_was_sent(within: float) -> None:
    assert asked_within(request_body(within)) == within
    assert len(request_body(within)) <= LARGEST_REQUEST


@given(st.binary(max_size=2 * LARGEST_REQUEST) | ANY_JSON | st.builds(dict, within_s=ANY_JSON))
def test_any_body_of_a_request_means_a_bounded_time(body: object) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert 0.0 <= asked_within(data) <= MOST_WITHIN


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"1.2",
        b'{"within_s": "1.2"}',
        b'{"within_s": true}',
        b'{"within_s": -1}',
        b'{"within_s": NaN}',
        b'{"within_s": 1.2' + b" " * LARGEST_REQUEST + b"}",
    ],
)
def test_an_absent_or_damaged_body_means_at_once(body: bytes) -> None:
    assert asked_within(body) == 0.0


@given(st.floats(0, MOST_WITHIN), st.integers(0, 5000), st.floats(0, 1))
def test_a_node_answers_in_time_and_in_a_small_fleet_at_once(
    within: float, nodes: int, chance: float
) -> None:
    after = answer_after(within, nodes, chance)
    assert 0.0 <= after <= within
    assert after == (chance * within if nodes > SMALL_FLEET else 0.0)
