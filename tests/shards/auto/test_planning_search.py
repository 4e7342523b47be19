"""Plans are the best ones there are: compared with every way, on small problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.auto.plan import make_plan, make_plan_with
from shards.auto.predict import Prediction, Range, predict
from shards.auto.problem import (
    Codec,
    Device,
    DeviceLink,
    JpegCost,
    PlanningProblem,
    PlanObjective,
    Segment,
)
from shards.auto.search import is_disproved, tables_of
from shards.errors import PlanError

MS = st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0])
SIZES = st.sampled_from([0, 1_000, 50_000, 400_000])
PICTURES = st.builds(JpegCost, st.sampled_from([1_000, 20_000]), MS, MS)
MEMORY = st.sampled_from([inf, 150.0, 60.0])


@st.composite
def problems(draw: st.DrawFn) -> PlanningProblem:
    segments = tuple(
        Segment(f"s{at}", draw(MS), draw(st.integers(0, 50)), draw(st.integers(0, 9)), draw(SIZES))
        for at in range(draw(st.integers(1, 5)))
    )
    device = st.builds(
        Device,
        st.just(""),
        st.sampled_from([1.0, 0.5, 3.0]),
        MEMORY,
        st.sampled_from(["a", "b"]),
        session=st.just(5),
        share=st.sampled_from([1.0, 0.5]),
        period_ms=st.just(4.0),
    )
    made = [draw(device) for _ in range(draw(st.integers(1, 4)))]
    devices = tuple(replace(each, name=f"d{at}") for at, each in enumerate(made))
    link = st.builds(DeviceLink, st.sampled_from([1e6, 2e7, inf]), st.sampled_from([0.0, 4.0]))
    source = draw(st.sampled_from(["", "d0"]))
    stays = bool(source) and draw(st.booleans())
    is_sent = bool(source) and not stays
    return PlanningProblem(
        segments,
        devices,
        draw(st.sampled_from(PlanObjective)),
        {("a", "b"): draw(link), ("a", "a"): draw(link)},
        draw(link),
        (Codec("none"), Codec("i8", 0.25, 0.5, 0.01)),
        draw(st.sampled_from([0.0, 0.02])),
        source,
        stays,
        draw(SIZES),
        draw(st.sampled_from([inf, 12.0, 40.0])),
        draw(st.sampled_from([0.0, 100.0])),
        draw(st.none() | PICTURES) if is_sent else None,
    )


def kind(problem: PlanningProblem, name: str) -> object:
    device = next(each for each in problem.devices if each.name == name)
    return replace(device, name=""), name == problem.source


def every_way(problem: PlanningProblem) -> Iterator[list[Range]]:
    """All ways to give all segments to some devices; replicas are of one kind."""
    count, names = len(problem.segments), [device.name for device in problem.devices]

    def ways(start: int, left: tuple[str, ...]) -> Iterator[list[Range]]:
        if start == count:
            yield []
            return
        for end in range(start + 1, count + 1):
            for size in range(1, len(left) + 1):
                for chosen in itertools.combinations(left, size):
                    if len({kind(problem, name) for name in chosen}) > 1:
                        continue
                    rest = tuple(name for name in left if name not in chosen)
                    for more in ways(end, rest):
                        yield [Range(start, end, chosen), *more]

    yield from ways(0, tuple(names))


def allowed(problem: PlanningProblem, found: Prediction) -> bool:
    return (
        not found.lacks
        and found.latency_ms <= problem.latency_ms * (1 + 1e-9)
        and (not problem.rate or found.period_ms <= 1e3 / problem.rate * (1 + 1e-9))
    )


def value(problem: PlanningProblem, found: Prediction) -> float:
    if problem.objective is PlanObjective.LATENCY:
        return found.latency_ms
    if problem.objective is PlanObjective.DEVICES:
        return float(len(found.memory))
    return found.period_ms


@given(problems())
@settings(max_examples=150)
def test_a_plan_is_as_good_as_the_best_of_all_ways(problem: PlanningProblem) -> None:
    predictions = (predict(problem, way) for way in every_way(problem))
    able = [value(problem, found) for found in predictions if allowed(problem, found)]
    if not able:
        with pytest.raises(PlanError):
            make_plan(problem)
        return
    plan = make_plan(problem)
    assert plan.gap == pytest.approx(0.0)
    assert allowed(problem, plan.prediction)
    assert value(problem, plan.prediction) == pytest.approx(min(able))


@given(problems(), PICTURES)
@settings(max_examples=80)
def test_an_input_leaves_as_pixels_or_as_a_picture_by_which_plan_is_better(
    problem: PlanningProblem, picture: JpegCost
) -> None:
    problem = replace(problem, source="d0", stays=False)
    able = []
    for way in (None, picture):
        try:
            able.append(make_plan(replace(problem, picture=way)).prediction)
        except PlanError:
            continue
    if not able:
        with pytest.raises(PlanError):
            make_plan_with(problem, picture)
        return
    plan = make_plan_with(problem, picture)
    assert plan.prediction == min(able, key=lambda each: (value(problem, each), each.latency_ms))
    told = [plan.prediction, *(other.prediction for other in plan.others)]
    assert all(each in told for each in able)
    assert all(other.why for other in plan.others)


@given(problems())
@settings(max_examples=50)
def test_each_other_plan_has_a_reason_and_is_no_better(problem: PlanningProblem) -> None:
    try:
        plan = make_plan(problem)
    except PlanError:
        return
    for other in plan.others:
        assert other.why
        assert other.prediction is not None
        if allowed(problem, other.prediction):
            best = value(problem, plan.prediction)
            assert value(problem, other.prediction) >= best * (1 - 1e-9)


@given(problems())
@settings(max_examples=60)
def test_a_period_is_disproved_where_no_way_has_it_and_only_there(problem: PlanningProblem) -> None:
    problem = replace(problem, objective=PlanObjective.THROUGHPUT, rate=0.0)
    predictions = (predict(problem, way) for way in every_way(problem))
    able = [value(problem, found) for found in predictions if allowed(problem, found)]
    tables = tables_of(problem)
    best = min(able, default=inf)
    if best < inf:
        assert not is_disproved(tables, best, problem.latency_ms, 10_000)
        assert is_disproved(tables, best * 0.99, problem.latency_ms, 10_000)
    else:
        assert is_disproved(tables, inf, problem.latency_ms, 10_000)


def test_bounds_that_nothing_meets_are_named() -> None:
    segments = (Segment("s0", 10.0, weights=50_000_000), Segment("s1", 10.0, weights=90_000_000))
    pair = (Device("a"), Device("b"))
    with pytest.raises(PlanError, match="within 5 ms"):
        make_plan(PlanningProblem(segments, pair, latency_ms=5.0))
    small = tuple(Device(name, memory=60e6) for name in "ab")
    with pytest.raises(PlanError, match=r"no room for the model: .* segment s1 alone 90 MB"):
        make_plan(PlanningProblem(segments, small))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"devices": ()}, "a device at least"),
        ({"devices": (Device("a"), Device("a"))}, "two devices have one name"),
        ({"source": "b"}, "no device is named 'b'"),
        ({"stays": True}, "needs a source"),
        ({"picture": JpegCost(9)}, "sent by a source"),
        ({"devices": (Device("a", times=(1.0, 2.0)),)}, "2 times, of 1 segments"),
        ({"devices": (Device("a", speed=0.0),)}, "above 0"),
        ({"codecs": (Codec("i4", error=0.3),)}, "changes results"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        replace(PlanningProblem((Segment("s", 1.0),), (Device("a"),)), **wrong)  # type: ignore[arg-type]
