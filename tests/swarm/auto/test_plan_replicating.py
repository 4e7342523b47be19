"""A busy slot gets a node that fills none, and gives it back; a frozen plan stays as it is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.replicating import Change, change, slot_loads
from swarm.auto.slots import AutoNode, SlotClaim, fill
from swarm.fleet.scaling import Scaling
from swarm.fleet.warm_pool import StageState

SLOTS = (PlanSlot(1, 2, "a", 1000, 50), PlanSlot(3, 3, "b", 1000, 50))
PLAN = PlanInForce("m", "1", 1, SLOTS, "a", "first")
ALL = frozenset((1, 2, 3))
NODES = tuple(AutoNode(name, room=100, pace_us=(500, 500, 1000), serves=ALL) for name in "abc")


def states(*busy: float) -> list[StageState]:
    return [StageState(("m", "1", n), 1, busy=b, covers=1) for n, b in enumerate(busy, 1)]


def after(
    plan: PlanInForce,
    busy: list[StageState],
    seconds: float = 5.0,
    nodes: tuple[AutoNode, ...] = NODES,
) -> Change | None:
    scaling, filled = Scaling(), fill(plan, nodes)
    for tick in range(round(seconds / 0.3)):
        loads = slot_loads(plan, filled, busy)
        wanted = scaling.observe(loads, tick * 0.3)
    return change(plan, filled, nodes, loads, wanted)


def test_a_node_is_as_busy_as_all_of_its_stages_together() -> None:
    found = after(PLAN, states(0.4, 0.4, 0.1))
    assert found is not None
    assert (found.stage, found.replicas) == (1, 2)
    assert "stages 1-2 compute 80%" in found.why
    assert after(PLAN, states(0.3, 0.3, 0.1)) is None


def test_without_a_free_node_with_room_and_in_a_frozen_plan_nothing_changes() -> None:
    busy = states(0.4, 0.4, 0.1)
    assert after(replace(PLAN, frozen=True), busy) is None
    assert after(replace(PLAN, slots=(replace(SLOTS[0], need=200), SLOTS[1])), busy) is None
    both = replace(PLAN, slots=(replace(SLOTS[0], replicas=2), SLOTS[1]))
    assert after(both, states(0.9, 0.9, 0.1)) is None


def test_a_slot_that_has_been_calm_gives_its_second_node_back() -> None:
    both = replace(PLAN, slots=(replace(SLOTS[0], replicas=2), SLOTS[1]))
    assert after(both, states(0.1, 0.1, 0.1), seconds=60) is None
    assert after(both, states(0.1, 0.1, 0.1), seconds=130) == Change(
        1, 1, "the nodes of stages 1-2 compute only 10% of the time"
    )


def test_while_a_further_node_loads_no_third_one_is_taken() -> None:
    """The work that piled up waits until it serves."""
    both = replace(PLAN, slots=(replace(SLOTS[0], replicas=2), SLOTS[1]))
    piled = [replace(states(0.9)[0], work=3.0), *states(0.9, 0.1, 0.1)[1:]]
    helper = replace(NODES[2], claim=SlotClaim(1, 0))
    free = replace(NODES[0], node="d")
    loading = (*NODES[:2], replace(helper, serves=frozenset([1])), free)
    assert after(both, piled, nodes=loading) is None
    found = after(both, piled, nodes=(*NODES[:2], helper, free))
    assert found is not None
    assert found.replicas == 3


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_no_slot_is_left_without_a_node(busy: list[float]) -> None:
    found = after(PLAN, states(*busy), seconds=130)
    assert found is None or found.replicas >= 1
