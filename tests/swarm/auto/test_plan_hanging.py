"""A node that hangs while it loads keeps its place for a while, and then another one has it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.hanging import LEFT_OUT_FOR, PATIENCE, Hanging, patience
from swarm.auto.links import NodeLink
from swarm.auto.slots import AutoNode, SlotClaim, fill

SLOTS = (PlanSlot(1, 2, "a", need=30), PlanSlot(3, 4, "h", need=30))
PLAN = PlanInForce("m", "1", 7, SLOTS)
WAIT = patience(SLOTS[1], AutoNode("h")) + 1


def node(name: str, slot: int | None = None, *serves: int, room: int = 100) -> AutoNode:
    claim = None if slot is None else SlotClaim(PLAN.number, slot)
    return AutoNode(name, room, (100,) * 4, claim, frozenset(serves))


SERVES, HANGS, SPARE = node("a", 0, 1, 2), node("h", 1), node("spare")


def seen(nodes: tuple[AutoNode, ...], *moments: float) -> frozenset[str]:
    hanging = Hanging()
    return [hanging.observe(PLAN, nodes, now) for now in moments][-1]


def test_a_spare_node_takes_the_place_of_one_that_hangs_and_not_sooner() -> None:
    nodes = (SERVES, HANGS, SPARE)
    assert seen(nodes, 0, WAIT - 2) == frozenset()
    left_out = seen(nodes, 0, WAIT)
    assert left_out == {"h"}
    assert fill(PLAN, nodes) == {"a": 0, "h": 1}
    assert fill(PLAN, nodes, left_out) == {"a": 0, "spare": 1}


def test_a_hanging_replica_makes_room_for_another_one() -> None:
    both = replace(PLAN, slots=(replace(SLOTS[0], replicas=2), SLOTS[1]))
    nodes = (SERVES, node("r", 0, 1), node("h", 1, 3, 4), SPARE)
    assert fill(both, nodes) == {"a": 0, "r": 0, "h": 1}
    assert fill(both, nodes, {"r"}) == {"a": 0, "spare": 0, "h": 1}


def test_one_whose_place_nobody_else_can_take_keeps_it_for_it_may_only_be_slow() -> None:
    nodes = (SERVES, HANGS, node("small", room=10))
    assert fill(PLAN, nodes, {"h"}) == {"a": 0, "h": 1}


def test_who_comes_further_by_a_stage_is_waited_for_anew_and_who_serves_all_hangs_no_more() -> None:
    hanging, further = Hanging(), replace(HANGS, serves=frozenset([3]))
    hanging.observe(PLAN, [HANGS], 0)
    assert not hanging.observe(PLAN, [further], WAIT)
    assert not hanging.observe(PLAN, [further], 2 * WAIT - 2)
    assert hanging.observe(PLAN, [further], 2 * WAIT) == {"h"}
    assert not hanging.observe(PLAN, [replace(HANGS, serves=frozenset([3, 4]))], 2 * WAIT + 1)


def test_another_plan_does_not_give_a_node_that_hangs_a_slot_at_once_and_later_it_may_try() -> None:
    hanging, later = Hanging(), replace(PLAN, number=8)
    for now in (0.0, WAIT):
        hanging.observe(PLAN, [HANGS], now)
    assert hanging.observe(later, [replace(HANGS, claim=None)], WAIT + 1) == {"h"}
    assert not hanging.observe(later, [replace(HANGS, claim=None)], WAIT + LEFT_OUT_FOR + 1)


def test_large_slots_and_slow_links_have_more_time() -> None:
    large, far = replace(SLOTS[1], need=900_000_000), replace(HANGS, link=NodeLink(0, 500_000, 0))
    assert patience(SLOTS[1], HANGS) < PATIENCE + 1
    assert patience(large, HANGS) == PATIENCE + 300
    assert patience(large, far) == PATIENCE + 1800


names = st.sampled_from(["a", "b", "c", "d"])


@given(
    st.dictionaries(names, st.none() | st.integers(0, 1), min_size=1),
    st.sets(names),
    st.integers(1, 2),
)
def test_leaving_nodes_out_never_empties_a_slot_that_a_claim_holds(
    claims: dict[str, int | None], hanging: set[str], replicas: int
) -> None:
    plan = replace(PLAN, slots=tuple(replace(slot, replicas=replicas) for slot in SLOTS))
    nodes = [node(name, slot) for name, slot in claims.items()]
    filled = fill(plan, nodes, hanging)
    assert {slot for slot in claims.values() if slot is not None} <= set(filled.values())
    for name in hanging & filled.keys():
        others = [n for n in filled if filled[n] == filled[name] and n not in hanging]
        assert claims[name] == filled[name]
        assert not others, "it keeps only what nobody else has"
