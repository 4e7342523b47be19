"""Views of one moment go on together, once, in time, whatever comes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.cameras.join.pairing import MOST_WAITING, Moment, Pairing, View, step
from nodes.cameras.join.views import fused_input, view_of
from swarm.errors import InvalidArgument

EDGES = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(st.sampled_from(EDGES), st.floats(0, 0.3), st.floats(0, 0.5)), max_size=80
)


def played(steps: list[tuple[str, float, float]]) -> tuple[list[View], list[tuple[float, Moment]]]:
    """Views come after a pause, each with an age; the clock is looked at whenever one is due."""
    state, now = Pairing(EDGES, 0.05, 0.2), 100.0
    came: list[View] = []
    gone: list[tuple[float, Moment]] = []
    for edge, pause, age in steps:
        while state.due is not None and state.due <= now + pause:
            due = max(now, state.due)
            state, moments = step(state, None, due)
            gone += [(due, moment) for moment in moments]
            assert moments, "time that is due lets a moment go on"
        now += pause
        came.append(View(edge, now - age, now))
        state, moments = step(state, came[-1], now)
        gone += [(now, moment) for moment in moments]
        assert all(len(views) <= MOST_WAITING for views in state.waiting.values())
    while state.due is not None:
        now = max(now, state.due)
        state, moments = step(state, None, now)
        gone += [(now, moment) for moment in moments]
    return came, gone


@given(STEPS)
def test_each_view_goes_on_once_with_others_of_its_moment_and_within_the_deadline(
    steps: list[tuple[str, float, float]],
) -> None:
    came, gone = played(steps)
    passed = [view for _, moment in gone for view in moment.values()]
    assert sorted(map(id, passed)) == sorted(map(id, came))
    for at, moment in gone:
        assert all(view.edge == edge for edge, view in moment.items())
        captured = [view.captured for view in moment.values()]
        assert max(captured) - min(captured) <= 0.05
        assert all(at - view.arrived <= 0.2 + 1e-9 for view in moment.values())


@given(st.lists(st.floats(0, 0.02), min_size=1, max_size=30), st.integers(0, 2))
def test_steady_edges_are_joined_moment_by_moment(late: list[float], missing: int) -> None:
    views = [
        View(edge, number * 0.1, number * 0.1 + delay + index * 0.001, number)
        for number, delay in enumerate(late)
        for index, edge in enumerate(EDGES[missing:])
    ]
    state, gone = Pairing(EDGES[missing:], 0.05, 0.2), []
    for view in sorted(views, key=lambda each: each.arrived):
        state, moments = step(state, view, view.arrived)
        gone += moments
    assert [{v.result for v in moment.values()} for moment in gone] == [
        {n} for n in range(len(late))
    ]
    assert all(set(moment) == set(EDGES[missing:]) for moment in gone)
    assert state.due is None


def test_a_view_goes_on_alone_once_the_other_edge_has_passed_its_moment() -> None:
    state, moments = step(Pairing(("a", "b"), 0.05, 9.0), View("a", 1.0, 1.0), 1.0)
    assert not moments
    state, moments = step(state, View("x", 1.0, 1.0), 1.0)
    assert not moments
    state, moments = step(state, View("b", 1.2, 1.2), 1.2)
    assert [set(moment) for moment in moments] == [{"a"}]


def test_more_views_than_may_wait_let_the_oldest_go() -> None:
    state, gone = Pairing(("a", "b"), 0.05, 1e9), []
    for number in range(MOST_WAITING + 5):
        state, moments = step(state, View("a", number, number), number)
        gone += moments
    assert [moment["a"].captured for moment in gone] == [0, 1, 2, 3, 4]


def test_views_stand_one_behind_the_other_with_zeros_for_a_missing_one() -> None:
    def view(edge: str, **fields: object) -> View:
        line = {"status": "OK", "sequence": 1, "age_ms": 20, **fields}
        found = view_of(edge, json.dumps(line).encode(), 50.0)
        assert found is not None
        assert found.captured == pytest.approx(49.98)
        return found

    classes = [{"class": 1, "score": 0.7, "label": "x"}]
    moment = {
        "a": view("a", outputs={"logits": [[1.0, 2.0]]}),
        "b": view("b", embedding=[3, 4]),
        "d": view("d", classes=classes),
    }
    made = fused_input(("a", "b", "c", "d"), moment, ["N", 8])
    assert np.array_equal(made, np.float32([[1, 2, 3, 4, 0, 0, 0, 0.7]]))
    with pytest.raises(InvalidArgument, match="a: a result that is not 3 numbers"):
        fused_input(("a", "b"), moment, ["N", 6])
    with pytest.raises(InvalidArgument, match="join of 3 edges"):
        fused_input(("a", "b", "d"), moment, ["N", 8])


@pytest.mark.parametrize("data", [b"", b"[]", b'{"status":"OK"}', b'{"status":"OK","age_ms":-1}'])
def test_a_result_that_is_none_is_refused_by_its_edges_name(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="cam"):
        view_of("cam", data, 1.0)


def test_failed_results_are_no_views_and_repeated_ones_are_of_now() -> None:
    assert view_of("cam", b'{"status":"UNAVAILABLE"}', 1.0) is None
    view = view_of("cam", b'{"status":"OK","age_ms":900,"repeats":3}', 1.0)
    assert view is not None
    assert view.captured == 1.0
