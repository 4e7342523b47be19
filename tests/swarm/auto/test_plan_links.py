"""Nodes behind slow links: who gets a slot, what a draft expects of it, and when a plan moves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim.auto.plan_world import World

from nodes.auto.searching import Searching, problem_of
from shards.auto.plan import make_plan
from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.drafts import (
    MOST_STEPS,
    WORTH_A_NODE,
    WORTH_AN_ORDER,
    Draft,
    Partition,
    StageEstimate,
    has_dear_slot,
    predicted,
    slot_of,
    steps_of,
)
from swarm.auto.links import NEAR, NodeLink, link_of, time_on_link
from swarm.auto.proposing import BETTER_FOR, LATER, MOVE_EVERY
from swarm.auto.slots import AutoNode, fill
from swarm.wire.codec_choice import candidates
from swarm.wire.tensors import known_codecs

MBIT = 125_000  # bytes a second
FIVE, HUNDRED = NodeLink(10_000, 5 * MBIT, 5 * MBIT), NodeLink(1000, 100 * MBIT, 100 * MBIT)
WIDE = tuple(
    StageEstimate(4000, need=10, file=1000, receives=30_000, sends=30_000) for _ in range(8)
)
ALL = frozenset(range(1, len(WIDE) + 1))
FOUND = MOVE_EVERY + BETTER_FOR + 2 * LATER + 5  # seconds within which a better plan is proposed


def fleet(count: int, link: NodeLink = NEAR, **more: int) -> World:
    made = World(WIDE)
    for n in range(count):
        made.join(f"auto-{n}", **more)
        made.fade(f"auto-{n}", link)
    made.run(10)
    return made


def holder(world: World) -> str:
    """A node that fills a slot."""
    return next(nodes[0] for nodes in world.holders().values())


def test_a_codec_that_the_model_allows_shortens_the_way_and_a_fast_link_takes_no_time() -> None:
    size, rate = 150_000, 5 * MBIT
    plain = time_on_link(size, rate, ())
    assert plain == pytest.approx(240_000)
    exact = tuple(candidates("auto", (), known_codecs()))
    lossy = tuple(candidates("auto", ("i8",), known_codecs()))
    assert time_on_link(size, rate, lossy) < time_on_link(size, rate, exact) <= plain
    assert time_on_link(size, rate, lossy) < plain / 3
    assert time_on_link(size, 0, lossy) == 0.0


def test_a_link_is_read_as_it_was_gossiped() -> None:
    assert link_of({"link": (9000, 1, 2)}) == NodeLink(9000, 1, 2)
    assert link_of({"role": "auto"}) == NEAR


def test_a_node_behind_5_mbit_s_gets_no_slot_and_one_behind_100_does() -> None:
    near = [AutoNode(f"near-{n}", 1000, (4000,) * 8) for n in range(3)]
    for link, has_one in ((FIVE, False), (HUNDRED, True)):
        far = AutoNode("far", 1000, (4000,) * 8, link=link)
        draft = Partition().draft("m/1", WIDE, [*near, far], ())
        assert draft is not None
        assert ("far" in {slot.node for slot in draft.slots}) is has_one


def test_a_node_behind_a_slow_link_serves_what_has_no_room_elsewhere() -> None:
    near, far = AutoNode("near", 50, (4000,) * 8), AutoNode("far", 50, (4000,) * 8, link=FIVE)
    draft = Partition().draft("m/1", WIDE, [near, far], ())
    assert draft is not None
    assert {slot.node for slot in draft.slots} == {"near", "far"}
    assert draft.period == pytest.approx(30_000 / (5 * MBIT) * 1e6)


def test_nodes_of_one_host_behind_a_slow_link_hand_over_to_each_other() -> None:
    """The first stage receives little and the last one sends little: only between them is much."""
    stages = (StageEstimate(90_000, 10, 0, 10, 10**6), StageEstimate(90_000, 10, 0, 10**6, 10))
    far = [AutoNode(f"far-{n}", 10, (90_000,) * 2, host="h", link=FIVE) for n in range(2)]
    near = [AutoNode(f"near-{n}", 10, (90_000,) * 2, host=f"n{n}") for n in range(2)]
    slots = tuple(slot_of(stages, n + 1, n + 1, f"far-{n}", 90_000) for n in range(2))
    plan = PlanInForce("m", "1", 1, slots)
    filled = {"far-0": 0, "far-1": 1}
    assert predicted(plan, filled, far, stages) == pytest.approx(90_500)
    apart = [replace(node, host="") for node in far]
    assert predicted(plan, filled, apart, stages) == pytest.approx(1.6e6)
    draft = Partition().draft("m/1", stages, [far[0], near[0], near[1]], ())
    assert draft is not None
    assert {slot.node for slot in draft.slots} == {"near-0", "near-1"}


def chosen(chance: random.Random, stages: int, count: int) -> tuple[list[StageEstimate], list]:
    facts = []
    between = [chance.choice([100, 3000, 30_000]) for _ in range(stages + 1)]
    for n in range(stages):
        facts.append(StageEstimate(1000, chance.randint(1, 3), 0, between[n], between[n + 1]))
    links = [NEAR, NEAR, FIVE, HUNDRED, NodeLink(500, 50 * MBIT, 2 * MBIT)]
    nodes = [
        AutoNode(
            f"n{n}",
            chance.randint(1, 9),
            tuple(chance.randint(100, 9000) for _ in facts),
            host=chance.choice(["", "a", "b"]),
            link=chance.choice(links),
        )
        for n in range(count)
    ]
    return facts, nodes


def drafts_of(facts: Sequence[StageEstimate], nodes: Sequence[AutoNode]) -> Iterator[Draft]:
    """Every cut on every order of nodes that have room."""
    for parts in range(1, min(len(facts), len(nodes)) + 1):
        for cuts in combinations(range(1, len(facts)), parts - 1):
            ranges = list(pairwise([0, *cuts, len(facts)]))
            for order in permutations(nodes, parts):
                placed = list(zip(order, ranges, strict=True))
                if all(sum(f.need for f in facts[b:e]) <= node.room for node, (b, e) in placed):
                    slots = tuple(
                        slot_of(facts, b + 1, e, node.node, sum(node.pace_us[b:e]))
                        for node, (b, e) in placed
                    )
                    yield Draft(slots, expected(slots, nodes, facts))


def expected(
    slots: tuple[PlanSlot, ...], nodes: Sequence[AutoNode], facts: Sequence[StageEstimate]
) -> float:
    filled = {slot.node: number for number, slot in enumerate(slots)}
    return predicted(PlanInForce("m", "1", 1, slots), filled, nodes, facts)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_a_draft_over_slow_links_is_as_predicted_and_nearly_the_best(
    stages: int, count: int, seed: int
) -> None:
    """Of the drafts without a slot that is longer on its link than it computes, where there are
    such drafts."""
    facts, nodes = chosen(random.Random(seed), stages, count)
    draft = Partition().draft("m/1", facts, nodes, ())
    able = list(drafts_of(facts, nodes))
    if draft is None:
        assert able == []
        return
    assert abs(expected(draft.slots, nodes, facts) - draft.period) < 2
    good = [each for each in able if not has_dear_slot(each.slots, nodes, facts)]
    assert has_dear_slot(draft.slots, nodes, facts) is (not good)
    best = min(each.period for each in good or able)
    assert best - 1 <= draft.period
    assert draft.period <= best / ((1 - WORTH_AN_ORDER) * (1 - WORTH_A_NODE)) + 1


def test_the_thorough_search_sees_the_same_links() -> None:
    chance = random.Random(3)
    nodes = [
        AutoNode(f"n{n}", 1000, tuple(chance.randint(500, 9000) for _ in WIDE)) for n in range(12)
    ]
    slow = [replace(node, link=FIVE) for node in nodes[:4]]
    nodes[:4] = slow
    assert steps_of(len(WIDE), nodes) > MOST_STEPS
    draft = Searching().draft("m/1", WIDE, nodes, ())
    assert draft is not None
    assert {slot.node for slot in draft.slots}.isdisjoint(node.node for node in slow)
    plan = make_plan(problem_of(WIDE, nodes))
    used = {name for each in plan.ranges for name in each.devices}
    assert used.isdisjoint(node.node for node in slow)
    assert plan.prediction.period_ms < 30_000 / (5 * MBIT) * 1e3


def test_a_spare_node_behind_a_slow_link_takes_no_slot_that_was_not_planned_for_it() -> None:
    slots = (slot_of(WIDE, 1, 4, "gone", 16_000), slot_of(WIDE, 5, 8, "near", 16_000))
    plan = PlanInForce("m", "1", 1, slots)
    near = AutoNode("near", 1000, (4000,) * 8)
    far = AutoNode("far", 1000, (4000,) * 8, link=FIVE)
    assert fill(plan, [near, far]) == {"near": 1}
    assert fill(plan, [near, replace(far, link=HUNDRED)]) == {"near": 1, "far": 0}
    for_it = replace(plan, slots=(replace(slots[0], node="far"), slots[1]))
    assert fill(for_it, [near, far]) == {"near": 1, "far": 0}


def test_a_plan_leaves_a_node_whose_link_fades_once_and_no_stage_is_let_go_too_early() -> None:
    world = fleet(4)
    far = holder(world)
    world.run(MOVE_EVERY)
    world.fade(far, FIVE)
    at, before = world.now, len(world.plans)
    while len(world.plans) == before:
        world.run(0.5)
        assert world.served() == ALL
        assert world.now - at <= BETTER_FOR + 2 * LATER + 5
    assert world.now - at >= BETTER_FOR
    for _ in range(40):
        world.run(0.5)
        assert world.served() == ALL
    assert world.plan is not None
    assert all(far not in nodes for nodes in world.holders().values())
    assert "shorter" in world.plan.reason
    world.run(2 * FOUND)
    assert len(world.plans) == before + 1


def test_a_short_fade_moves_nothing() -> None:
    world = fleet(4)
    far = holder(world)
    world.run(MOVE_EVERY)
    before = len(world.plans)
    for _ in range(5):
        world.fade(far, FIVE)
        world.run(BETTER_FOR - 2)
        world.fade(far, NEAR)
        world.run(5)
    assert len(world.plans) == before


def test_a_link_that_is_good_again_gets_its_node_a_slot_again() -> None:
    world = fleet(4)
    far = holder(world)
    world.fade(far, FIVE)
    world.run(FOUND)
    assert all(far not in nodes for nodes in world.holders().values())
    world.fade(far, HUNDRED)
    world.run(FOUND)
    assert any(far in nodes for nodes in world.holders().values())


def test_where_all_links_are_slow_one_node_computes_all_if_it_has_room() -> None:
    alone = fleet(3, NodeLink(10_000, 30 * MBIT, 30 * MBIT))
    assert alone.plan is not None
    assert len(alone.plan.slots) == 1
    small = fleet(3, FIVE, room=40)
    assert small.plan is not None
    assert small.served() == ALL
