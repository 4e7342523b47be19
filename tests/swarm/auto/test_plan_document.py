"""A plan in force is read as it was written, or refused with the place that is wrong."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.document import BadPlan, PlanInForce, PlanSlot, parse_plan, read_plan

PLAN = PlanInForce(
    "m", "1", 3, (PlanSlot(1, 2, "a", 10, 20), PlanSlot(4, 4, replicas=2)), "a", "why", "now"
)


@st.composite
def plans(draw: st.DrawFn) -> PlanInForce:
    cuts = sorted(draw(st.sets(st.integers(1, 200), max_size=12)))
    slots = [
        PlanSlot(first, draw(st.integers(first, after - 1)), draw(st.sampled_from(["", "auto-1"])))
        for first, after in pairwise([*cuts, 201])
    ]
    return PlanInForce(
        "m", "1", draw(st.integers(1, 1 << 40)), tuple(slots), frozen=draw(st.booleans())
    )


@given(plans())
def test_a_plan_is_read_as_it_was_written(plan: PlanInForce) -> None:
    assert read_plan(plan.encode()) == plan


def test_unknown_fields_are_passed_over() -> None:
    assert parse_plan(PLAN.document() | {"later": 1}) == PLAN


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"v": 2}, "format"),
        ({"model": "a.b"}, "model"),
        ({"number": 0}, "number"),
        ({"number": True}, "number"),
        ({"frozen": "yes"}, "frozen"),
        ({"reason": "x" * 1000}, "reason"),
        ({"slots": {}}, "slots"),
        ({"slots": [{"first": 2, "last": 1}]}, "slots[0].last"),
        ({"slots": [{"first": 1, "last": 3}, {"first": 3, "last": 4}]}, "slots[1].first"),
        ({"slots": [{"first": 1, "last": 3, "node": "a b"}]}, "slots[0].node"),
        ({"slots": [{"first": 1, "last": 3, "replicas": 0}]}, "slots[0].replicas"),
        ({"slots": [7]}, "slots[0]"),
    ],
)
def test_a_wrong_plan_is_refused_and_the_place_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(BadPlan) as refused:
        parse_plan(PLAN.document() | change)
    assert where in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (1 << 20)])
def test_bytes_that_are_no_plan_are_refused(data: bytes) -> None:
    with pytest.raises(BadPlan):
        read_plan(data)


def test_what_nobody_would_take_is_not_written() -> None:
    with pytest.raises(BadPlan):
        PlanInForce("m", "1", 0, ()).encode()


def test_a_stage_is_found_in_its_slot_or_in_none() -> None:
    assert [PLAN.of_stage(stage) for stage in (1, 2, 3, 4, 5)] == [0, 0, None, 1, None]
    assert json.loads(PLAN.encode())["slots"][1]["replicas"] == 2
