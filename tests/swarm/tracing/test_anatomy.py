"""The parts of a request's latency: none is negative, and together they are the latency."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.tracing.anatomy import moments, parts_of
from swarm.wire.hops import Hop

BEGIN = 1_700_000_000_000_000  # µs


def hop(stage: int, at: int, lane: int, queue: int, batch: int, compute: int) -> Hop:
    """at: µs since BEGIN when its run began. queue: without lane and batch."""
    told = moments(BEGIN + at, lane, batch)
    return Hop(stage, f"n{stage}", lane + queue + batch, compute, extra=told)


def test_two_stages_are_laid_out_in_time() -> None:
    hops = [hop(1, 160, 100, 50, 10, 300), hop(2, 600, 20, 30, 0, 100)]
    parts = [(p.kind, p.stage, p.start, p.length) for p in parts_of(0.001, hops)]
    assert parts == [
        ("lane", 1, 0, 100),
        ("queue", 1, 100, 50),
        ("batch wait", 1, 150, 10),
        ("compute", 1, 160, 300),
        ("onward", 1, 460, 90),
        ("lane", 2, 550, 20),
        ("queue", 2, 570, 30),
        ("compute", 2, 600, 100),
        ("outside", 0, 700, 300),
    ]


def test_hops_of_nodes_that_say_no_moments_follow_each_other() -> None:
    hops = [Hop(1, "a", 10, 20), Hop(2, "b", 30, 40)]
    parts = [(p.kind, p.start, p.length) for p in parts_of(0.0002, hops)]
    assert parts == [
        ("queue", 0, 10),
        ("compute", 10, 20),
        ("queue", 30, 30),
        ("compute", 60, 40),
        ("outside", 100, 100),
    ]


def test_the_edges_own_layers_come_before_the_first_stage() -> None:
    parts = parts_of(0.001, [Hop(0, "edge", 0, 200), hop(1, 50, 10, 0, 0, 100)])
    assert [(p.kind, p.stage) for p in parts] == [
        ("compute", 0),
        ("lane", 1),
        ("compute", 1),
        ("outside", 0),
    ]


amount = st.integers(0, 10_000)


@given(
    st.lists(st.tuples(st.integers(-5_000, 50_000), amount, amount, amount, amount), max_size=6),
    st.floats(0, 1),
)
def test_parts_never_overlap_and_fill_the_latency(
    stages: list[tuple[int, int, int, int, int]], latency: float
) -> None:
    hops = [hop(index + 1, *each) for index, each in enumerate(stages)]
    parts = parts_of(latency, hops)
    end = 0
    for part in parts:
        assert part.start == end
        assert part.length > 0
        end += part.length
    assert end >= round(latency * 1e6)
    computed = sum(part.length for part in parts if part.kind == "compute")
    assert computed == sum(each.compute_us for each in hops)
