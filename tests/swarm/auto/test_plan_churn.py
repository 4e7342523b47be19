"""A fleet that changes all the time: few moves, one plan, slots that are filled again soon."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim.auto.plan_churn import Churn, most_within
from sim.auto.plan_world import READ_EVERY, World

from swarm.auto.drafting import SHARE, Drafting
from swarm.auto.drafts import Draft, StageEstimate
from swarm.auto.links import NodeLink
from swarm.auto.proposing import BETTER_FOR, LATER, MOVE_EVERY
from swarm.auto.slots import AutoNode, PlanSlot

FILLED_WITHIN = 15.0  # seconds, behind a death
MOST_MOVES = 40  # of all nodes in a minute: one each
STAGES = (StageEstimate(4000, need=10), StageEstimate(4000, need=10))
ONE, TWO = AutoNode("a", 20, (4000, 4000)), AutoNode("b", 20, (4000, 4000))
DRAFT = Draft((PlanSlot(1, 1, "a", 4000, 10), PlanSlot(2, 2, "b", 4000, 10)), 4500.0)


@pytest.fixture(scope="module")
def fleet() -> Churn:
    made = Churn(40, seed=2, pace=8.0)
    made.run(5)
    return made


def test_a_plan_that_can_run_is_changed_once_a_minute_at_most(fleet: Churn) -> None:
    found = fleet.figures()
    assert found["plans"] > 2
    assert found["least_between_gains_s"] >= MOVE_EVERY
    assert found["moves_a_minute_most"] <= MOST_MOVES


def test_nobody_goes_to_and_fro_and_no_slot_has_too_many_nodes_for_long(fleet: Churn) -> None:
    assert fleet.to_and_fro == []
    assert max(fleet.crowded, default=0.0) < 5.0


def test_behind_each_death_all_slots_have_a_node_again_soon(fleet: Churn) -> None:
    found = fleet.figures()
    assert found["deaths_with_a_slot"] > 2
    assert found["not_filled_again"] <= 1, "the last one may just have died"
    assert found["filled_again_s"]["longest"] < FILLED_WITHIN


def test_all_nodes_know_one_plan_soon_even_if_an_announcement_is_lost(fleet: Churn) -> None:
    assert fleet.apart
    assert max(fleet.apart) < READ_EVERY / 2, "others' claims tell of it before the next reading"


def test_the_same_seed_is_the_same_fleet() -> None:
    one, two = (Churn(12, seed=3, pace=20.0) for _ in range(2))
    for each in (one, two):
        each.run(1)
    assert one.figures() == two.figures()
    assert most_within([0.0, 50.0, 61.0, 70.0], 60.0) == 3


@pytest.mark.benchmark
def test_a_mesh_whose_picture_changes_all_the_time_moves_to_a_better_plan_all_the_same() -> None:
    world = World()
    for n in range(6):
        world.join(f"auto-{n}", speed=0.5)
    world.run(10)
    world.join("auto-new", speed=4.0)
    before, began = len(world.plans), world.now
    while len(world.plans) == before and world.now - began < 2 * MOVE_EVERY:
        for n in range(6):  # figures of fast links vary, and change no plan
            world.fade(f"auto-{n}", NodeLink(1, 10**9 + world.chance.randrange(1000), 10**9))
            world.run(0.05)
    assert len(world.plans) == before + 1
    assert world.now - began <= MOVE_EVERY + BETTER_FOR + 3 * LATER


def drafting() -> Drafting:
    """With a draft that took 0.1 s."""
    made = Drafting()
    assert made.is_due([ONE, TWO], (), STAGES, True, 0.0)
    made.begins([ONE, TWO], (), True, 0.0)
    assert made.best([ONE, TWO], (), STAGES) is None
    made.ends(DRAFT, 0.1)
    return made


def test_a_draft_holds_while_its_nodes_live_and_is_reckoned_anew() -> None:
    drafts = drafting()
    assert drafts.best([ONE, TWO], (), STAGES) == DRAFT
    slower = replace(TWO, pace_us=(8000, 8000))
    seen = drafts.best([ONE, slower], (), STAGES)
    assert seen is not None
    assert (seen.slots, seen.period) == (DRAFT.slots, 8500.0)
    assert drafts.best([ONE], (), STAGES) is None
    assert drafts.best([ONE, replace(TWO, room=5)], (), STAGES) is None
    assert drafts.best([ONE, TWO], {2}, STAGES) is None


def test_drafts_take_a_share_of_a_core_unless_a_plan_is_broken_and_none_holds() -> None:
    drafts, changed = drafting(), [ONE, replace(TWO, room=30)]
    again = 0.1 + 0.1 / SHARE
    assert not drafts.is_due([ONE, TWO], (), STAGES, True, again + 1), "nothing has changed"
    assert not drafts.is_due(changed, (), STAGES, True, again - 0.1)
    assert drafts.is_due(changed, (), STAGES, True, again)
    assert not drafts.is_due(changed, (), STAGES, False, again - 0.1), "the last one holds"
    assert drafts.is_due([ONE], (), STAGES, False, 0.2)
