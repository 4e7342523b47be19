"""Cuts go by the times of whole stages, not by the times of their pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_graphs import mlp

import shards.split.plan
from shards.errors import ModelError
from shards.graph.fuse import fuse
from shards.graph.graph import Graph
from shards.graph.tensor_types import infer_types
from shards.split.balance import balance
from shards.split.profile import time_stages
from shards.split.refine import MOST_REFINING_ROUNDS, refine
from shards.split.split import split

Measure = Callable[[Sequence[int]], "list[float] | None"]

times = st.floats(0.01, 100.0)


class Stages:
    """Measures stages as the sums of given segment times, and remembers which were measured."""

    def __init__(self, segments: Sequence[float]) -> None:
        self.segments = segments
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, picked: Sequence[int]) -> list[float]:
        self.asked.append(tuple(picked))
        return self.of(picked)

    def of(self, picked: Sequence[int]) -> list[float]:
        bounds = [0, *(at + 1 for at in picked), len(self.segments)]
        return [sum(self.segments[start:end]) for start, end in pairwise(bounds)]

    def uneven(self, picked: Sequence[int]) -> float:
        took = self.of(picked)
        return max(took) / sum(took)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], Stages, int]:
    """Times of segments alone, times of the segments within a stage, the number of stages."""
    pairs = draw(st.lists(st.tuples(times, times), min_size=2, max_size=12))
    stages = draw(st.integers(1, min(4, len(pairs))))
    return [alone for alone, _ in pairs], Stages([within for _, within in pairs]), stages


@given(cases())
def test_refined_stages_are_never_less_even_than_those_cut_by_segments(
    case: tuple[list[float], Stages, int],
) -> None:
    segments, measure, stages = case
    sends = [0.0] * (len(segments) - 1)
    found = refine(segments, sends, stages, measure)
    assert len(found) == stages - 1
    assert sorted(set(found)) == found
    assert measure.uneven(found) <= measure.uneven(balance(segments, sends, stages)) + 1e-9


@given(cases(), st.integers(1, MOST_REFINING_ROUNDS))
def test_no_cut_is_measured_twice_and_none_beyond_the_rounds(
    case: tuple[list[float], Stages, int], rounds: int
) -> None:
    segments, measure, stages = case
    refine(segments, [0.0] * (len(segments) - 1), stages, measure, rounds)
    assert 1 <= len(measure.asked) <= rounds
    assert len(set(measure.asked)) == len(measure.asked)


def test_pieces_that_are_slower_alone_do_not_mislead() -> None:
    """The early segments take half as long again when they run alone, as convolutions do."""
    within = [1.0] * 40
    alone = [1.5] * 12 + [1.0] * 28
    measure = Stages(within)
    sends = [0.0] * 39
    assert measure.of(balance(alone, sends, 3)) == [10.0, 14.0, 16.0]
    assert max(measure.of(refine(alone, sends, 3, measure))) == 14.0
    assert min(max(measure.of(cut)) for cut in combinations(range(39), 2)) == 14.0


def test_the_bytes_that_a_cut_sends_count_as_time_of_its_stage() -> None:
    measure = Stages([1.0, 1.0, 1.0, 1.0])
    assert refine([1.0, 1.0, 1.0, 1.0], [0.0, 5.0, 0.0], 2, measure) in ([0], [2])


def test_a_machine_that_slows_down_for_a_while_does_not_choose_the_cut() -> None:
    """The better cut is measured while the machine is slow."""
    truth = Stages([1.0] * 30)
    alone = [2.0] * 10 + [1.0] * 20
    slow = iter([1.0, 3.0, 3.0, 3.0, 3.0])

    def measure(picked: Sequence[int]) -> list[float]:
        factor = next(slow)
        return [factor * took for took in truth.of(picked)]

    assert max(truth.of(refine(alone, [0.0] * 29, 3, measure))) == 10.0


def test_where_no_time_is_left_the_segments_decide() -> None:
    segments = [3.0, 1.0, 1.0, 1.0]
    assert refine(segments, [0.0] * 3, 2, lambda picked: None) == balance(segments, [0.0] * 3, 2)


def test_stages_that_take_no_time_at_all_can_be_refined() -> None:
    assert refine([0.0, 0.0, 1.0], [0.0, 0.0], 3, Stages([0.0, 0.0, 0.0])) == [0, 1]


# --- of a real graph ----------------------------------------------------------------------


def graph_of(layers: int = 6) -> tuple[Graph, Mapping[str, Any], dict[str, np.ndarray]]:
    graph = Graph.of(fuse(mlp(layers=layers)))
    return graph, infer_types(graph), {"x": np.ones((1, 16), np.float32)}


def test_stages_are_timed_in_turn_on_what_the_one_before_sends() -> None:
    graph, types, feeds = graph_of()
    ends = [0, len(graph) // 2, len(graph)]
    took = time_stages(graph, types, ends, feeds, budget_s=0.0)
    assert len(took) == 2
    assert all(ms > 0 for ms in took)
    behind_an_edge = time_stages(graph, types, ends[1:], feeds, budget_s=0.0)
    assert len(behind_an_edge) == 1


def test_a_stage_that_does_not_run_is_a_model_error() -> None:
    graph, types, _ = graph_of()
    with pytest.raises(ModelError, match="cannot be timed"):
        time_stages(graph, types, [0, len(graph)], {"x": np.ones((1, 3), np.float32)})


def test_a_split_goes_by_the_times_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def stages(
        graph: Graph, types: object, ends: Sequence[int], feeds: object, *, budget_s: float
    ) -> list[float]:
        """The layers of the first half take three times as long within a stage."""
        asked.append(list(ends))
        half = len(graph) / 2
        return [sum(3.0 if at < half else 1.0 for at in range(a, b)) for a, b in pairwise(ends)]

    monkeypatch.setattr(shards.split.plan, "time_stages", stages)
    monkeypatch.setattr(shards.split.plan, "SHORTEST_STAGE_TO_REFINE", 0.0)
    monkeypatch.setattr(
        shards.split.plan, "time_segments", lambda g, t, bounds, f: [1.0] * (len(bounds) - 1)
    )
    result = split(mlp(layers=12).SerializeToString(), name="m", stages=2)
    last = result.manifest.shards[-1]
    assert len(asked) > 1
    assert all(ends[0] == 0 and ends[-1] == last.end for ends in asked)
    assert result.manifest.shards[0].end < last.end / 2


def test_stages_too_short_for_the_clock_are_not_timed_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        shards.split.plan,
        "time_stages",
        lambda *_, **__: pytest.fail("noise would choose the cut"),
    )
    assert len(split(mlp(layers=6).SerializeToString(), name="m", stages=3).manifest.shards) == 3


def test_stages_that_cannot_be_timed_are_cut_by_their_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> list[float]:
        raise ModelError("no memory left")

    monkeypatch.setattr(shards.split.plan, "time_stages", fails)
    monkeypatch.setattr(shards.split.plan, "SHORTEST_STAGE_TO_REFINE", 0.0)
    assert len(split(mlp(layers=6).SerializeToString(), name="m", stages=3).manifest.shards) == 3
