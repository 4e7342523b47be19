"""Plans of simulated fleets: one node a slot, few moves, no stage let go too early, no fights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from sim.auto.plan_world import STAGES, World

from swarm.auto.document import PlanInForce
from swarm.auto.drafts import (
    HOP_US,
    WORTH_A_NODE,
    WORTH_AN_ORDER,
    Partition,
    StageEstimate,
    predicted,
)
from swarm.auto.proposing import (
    BETTER_FOR,
    MOVE_EVERY,
    Proposing,
    Situation,
    place_of,
)
from swarm.auto.slots import AutoNode
from swarm.routing.rendezvous import rendezvous

ALL = frozenset(range(1, len(STAGES) + 1))
QUIET = MOVE_EVERY + 2 * BETTER_FOR + 10  # seconds in which each improvement is made


def world(count: int, **more: float) -> World:
    made = World()
    for n in range(count):
        made.join(f"auto-{n}", **more)  # type: ignore[arg-type]
    made.run(10)
    return made


def test_the_first_plan_comes_by_itself_and_each_slot_gets_one_node() -> None:
    fleet = world(4)
    assert fleet.plan is not None
    assert len(fleet.plans) == 1
    assert [len(nodes) for nodes in fleet.holders().values()] == [1] * len(fleet.plan.slots)
    assert fleet.served() == ALL


def test_a_node_that_comes_gets_work_once_and_the_plan_stays() -> None:
    fleet = world(2)
    fleet.join("auto-new")
    fleet.run(2 * QUIET)
    assert fleet.plan is not None
    assert (fleet.plan.number, len(fleet.plan.slots)) == (2, 3)
    assert fleet.served() == ALL
    assert "shorter" in fleet.plan.reason


def test_a_slow_node_that_comes_moves_nothing() -> None:
    fleet = world(2)
    fleet.join("auto-slow", speed=0.05)
    fleet.run(2 * QUIET)
    assert len(fleet.plans) == 1


def test_a_fast_node_gets_more_stages_than_a_slow_one() -> None:
    fleet = World()
    fleet.join("slow", speed=0.25)
    fleet.join("fast", speed=1.0)
    fleet.run(10)
    held = {device.node: len(device.serves) for device in fleet.devices.values()}
    assert held["fast"] > 2 * held["slow"]


def test_the_room_of_each_node_is_respected() -> None:
    fleet = world(4, room=20)
    assert fleet.plan is not None
    assert [len(slot.stages) for slot in fleet.plan.slots] == [2, 2, 2, 2]
    fleet.leave("auto-0")
    fleet.run(30)
    assert len(fleet.plans) == 1, "six of eight stages are not a plan"
    assert Partition().draft("m", STAGES, [AutoNode("a", 20)], ()) is None


def test_a_spare_node_takes_the_slot_of_a_dead_one_without_another_plan() -> None:
    fleet = World((StageEstimate(2000, need=10),) * len(STAGES))
    for n in range(5):
        fleet.join(f"auto-{n}", room=20)
    fleet.run(10)
    assert fleet.plan is not None
    dead = fleet.holders()[1][0]
    fleet.leave(dead)
    fleet.run(5)
    assert len(fleet.plans) == 1
    assert fleet.served() == ALL


def test_without_a_spare_node_the_others_share_its_stages_at_once() -> None:
    fleet = world(4)
    fleet.leave(fleet.holders()[2][0])
    fleet.run(8)
    assert fleet.served() == ALL
    assert fleet.plan is not None
    assert fleet.plan.number == 2


def test_no_stage_is_let_go_before_another_node_serves_it() -> None:
    fleet = world(2)
    assert fleet.served() == ALL
    fleet.join("auto-new")
    while len(fleet.plans) < 2:
        fleet.run(0.5)
        assert fleet.served() == ALL
    for _ in range(40):
        fleet.run(0.5)
        assert fleet.served() == ALL, "throughout the move"


def test_nodes_without_room_for_old_and_new_change_places_all_the_same() -> None:
    fleet = world(2, room=40)
    assert fleet.plan is not None
    one, two = fleet.plan.slots
    swapped = (replace(one, node=two.node), replace(two, node=one.node))
    fleet.write(replace(fleet.plan, number=2, slots=swapped))
    fleet.run(6)
    assert fleet.served() == ALL
    assert fleet.devices[one.node].serves == frozenset(two.stages)


def test_a_frozen_plan_is_not_changed_by_nodes_and_its_slots_are_filled_still() -> None:
    fleet = world(3)
    fleet.freeze()
    fleet.join("auto-new")
    fleet.run(2 * QUIET)
    assert len(fleet.plans) == 1
    fleet.leave(fleet.holders()[0][0])
    fleet.run(5)
    assert fleet.served() == ALL


def test_the_halves_of_a_cut_network_do_not_fight() -> None:
    fleet = world(6)
    before = len(fleet.plans)
    fleet.cut(lambda node: int(node[-1]) % 2)
    fleet.run(QUIET)
    with_key = [device.node for device in fleet.devices.values() if device.side == 0]
    assert all(plan.proposer in with_key for _, plan in fleet.plans[before:])
    assert frozenset().union(*(fleet.devices[node].serves for node in with_key)) == ALL
    during = len(fleet.plans)
    fleet.heal()
    fleet.run(2 * QUIET)
    assert len(fleet.plans) <= during + 2
    assert [len(nodes) for nodes in fleet.holders().values()] == [1] * len(fleet.holders())


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_after_any_churn_the_plan_settles_on_one_node_a_slot(seed: int, count: int) -> None:
    chance, fleet = random.Random(seed), world(count)
    for step in range(chance.randint(1, 6)):
        if len(fleet.devices) > 1 and chance.random() < 0.5:
            fleet.leave(chance.choice(sorted(fleet.devices)))
        else:
            fleet.join(f"auto-x{step}", speed=chance.choice([0.5, 1.0, 2.0]))
        fleet.run(chance.uniform(0, 15))
    fleet.run(2 * QUIET)
    settled = len(fleet.plans)
    claims = fleet.holders()
    assert all(len(nodes) == 1 for nodes in claims.values()), claims
    assert fleet.served() == ALL
    fleet.run(QUIET)
    assert len(fleet.plans) == settled, "nothing changes any more"
    assert fleet.holders() == claims


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
def test_plans_that_can_run_do_not_follow_each_other_faster_than_one_a_minute(seed: int) -> None:
    chance, fleet = random.Random(seed), world(2)
    for step in range(6):
        fleet.join(f"auto-x{step}", speed=chance.choice([1.0, 2.0, 4.0]))
        fleet.run(chance.uniform(5, 40))
    times = [at for at, _ in fleet.plans]
    assert all(after - before >= MOVE_EVERY for before, after in pairwise(times))


def test_only_a_few_nodes_look_for_a_better_plan() -> None:
    nodes = [f"auto-{n}" for n in range(50)]
    places = sorted(place_of("m/1", node, nodes) for node in nodes)
    assert places == [0, 1, 2] + [3] * 47
    by_hash = rendezvous("m/1", nodes)
    assert [place_of("m/1", node, nodes) for node in by_hash[:3]] == [0, 1, 2]
    assert place_of("m/1", "unknown", nodes) == 3
    best = Partition().draft("m/1", STAGES, [AutoNode(n, 1000) for n in nodes[:4]], ())
    for place, proposes in ((0, True), (2, True), (3, False)):
        patience = Proposing()
        seen = [
            patience.observe(Situation(None, "no plan yet", 0.0, best), place, float(now))
            for now in range(20)
        ]
        assert any(seen) is proposes


def test_loading_that_costs_more_than_it_gains_is_not_proposed() -> None:
    plan = PlanInForce("m", "1", 1, ())
    nodes = [AutoNode("a", 1000), AutoNode("b", 1000)]
    best = Partition().draft("m/1", STAGES, nodes, ())
    assert best is not None
    for to_load, moves in ((10**6, True), (10**12, False)):
        patience, draft = Proposing(), type(best)(best.slots, best.period, to_load)
        seen = Situation(plan, "", 2 * best.period, draft)
        assert any(patience.observe(seen, 0, float(now)) for now in range(100)) is moves


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_a_draft_for_few_nodes_is_nearly_the_best_that_there_is(
    stages: int, count: int, seed: int
) -> None:
    """Every cut on every order of nodes, against the draft, which may keep an order or leave out
    a node that would gain a little."""
    chance = random.Random(seed)
    facts = tuple(StageEstimate(1000, need=chance.randint(1, 3)) for _ in range(stages))
    nodes = [
        AutoNode(f"n{n}", chance.randint(1, 9), tuple(chance.randint(100, 9000) for _ in facts))
        for n in range(count)
    ]
    draft, best = Partition().draft("m/1", facts, nodes, ()), shortest(facts, nodes)
    if best is None:
        assert draft is None
        return
    assert draft is not None
    assert best - 1 <= draft.period
    assert draft.period <= best / ((1 - WORTH_AN_ORDER) * (1 - WORTH_A_NODE)) + 1


def shortest(facts: Sequence[StageEstimate], nodes: Sequence[AutoNode]) -> float | None:
    """The shortest period, by trying all; None where the stages do not fit."""
    found: list[float] = []
    for parts in range(1, min(len(facts), len(nodes)) + 1):
        for cuts in combinations(range(1, len(facts)), parts - 1):
            ranges = list(pairwise([0, *cuts, len(facts)]))
            for order in permutations(nodes, parts):
                placed = list(zip(order, ranges, strict=True))
                if all(sum(f.need for f in facts[b:e]) <= node.room for node, (b, e) in placed):
                    found.append(HOP_US + max(sum(node.pace_us[b:e]) for node, (b, e) in placed))
    return min(found, default=None)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32))
def test_a_draft_is_as_it_is_predicted(stages: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    facts = STAGES[:stages]
    nodes = [
        AutoNode(f"n{n}", 1000, tuple(chance.randint(100, 9000) for _ in facts))
        for n in range(count)
    ]
    best = Partition().draft("m/1", facts, nodes, ())
    assert best is not None
    plan = PlanInForce("m", "1", 1, best.slots)
    filled = {slot.node: number for number, slot in enumerate(best.slots)}
    assert abs(predicted(plan, filled, nodes, facts) - best.period) < 2
    alone = min(sum(node.pace_us) for node in nodes) + 500.0
    assert best.period <= alone / 0.95
