"""A version that cannot run lets go of what it holds, where others are, once that has lasted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.auto_nodes import FleetRooms
from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.giving_up import GIVE_UP_AFTER, GivingUp, lacks
from swarm.auto.rooms import RoomUse, allot

PLAN = PlanInForce("m", "1", 1, (PlanSlot(1, 2, "x", 10, 5), PlanSlot(3, 3, "y", 10, 5)))
LOOK = 0.5  # seconds


@given(st.lists(st.booleans(), max_size=60))
def test_it_is_given_up_once_there_was_no_room_for_long_enough(looks: list[bool]) -> None:
    giving_up, since = GivingUp(), None
    for number, has_room in enumerate(looks):
        now = number * LOOK
        since = None if has_room else now if since is None else since
        lasts = since is not None and now - since >= GIVE_UP_AFTER
        assert giving_up.observe(PLAN, has_room, True, now) == lasts


@pytest.mark.parametrize(
    ("plan", "several"),
    [
        (None, True),
        (replace(PLAN, slots=()), True),
        (replace(PLAN, frozen=True), True),
        (PLAN, False),
    ],
    ids=["none", "given up already", "frozen", "nobody else there"],
)
def test_what_is_not_given_up(plan: PlanInForce | None, several: bool) -> None:
    giving_up = GivingUp()
    for now in (0.0, 100.0):
        assert not giving_up.observe(plan, False, several, now)


@pytest.mark.parametrize(
    ("plan", "last", "filled", "named", "why"),
    [
        (PLAN, 3, {"x": 0, "y": 1}, (), ""),
        (PLAN, 3, {"x": 0}, {3}, ""),
        (replace(PLAN, slots=()), 2, {}, {1, 2}, ""),
        (None, 3, {}, (), "no plan"),
        (replace(PLAN, slots=()), 3, {}, (), "no slot has stage 1"),
        (PLAN, 4, {"x": 0, "y": 1}, (), "no slot has stage 4"),
        (PLAN, 2, {"x": 0, "y": 1}, (), "names stage 3"),
        (PLAN, 3, {"y": 1}, {1}, "stages 1-2"),
    ],
)
def test_why_a_plan_cannot_run(
    plan: PlanInForce | None, last: int, filled: dict[str, int], named: set[int], why: str
) -> None:
    found = lacks(plan, last, filled, named)
    assert why in found if why else not found


def test_only_models_that_share_a_memory_are_others() -> None:
    uses = {name: RoomUse(name, name, "1") for name in "abc"}
    pools = {"one": allot(9, [uses["a"], uses["b"]]), "two": allot(9, [uses["c"]])}
    rooms = FleetRooms(pools, {"a": ["one"], "b": ["one"], "c": ["two"]})
    assert [rooms.is_for_several(name) for name in "abcd"] == [True, True, False, False]
