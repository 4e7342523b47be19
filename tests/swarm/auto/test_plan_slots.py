"""All nodes decide alike who fills which slot, and each slot gets exactly one node."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.advertised import fills_entry, pace_entry
from swarm.auto.auto_nodes import auto_nodes, named_by_hand
from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.slots import AutoNode, SlotClaim, empty, fill, to_hold
from swarm.fleet.advertised import serves_entries, valid
from swarm.gossip import PeerView

NUMBER = 4


def plan_of(*slots: PlanSlot) -> PlanInForce:
    return PlanInForce("m", "1", NUMBER, slots)


THREE = plan_of(PlanSlot(1, 2), PlanSlot(3, 5), PlanSlot(6, 8))


@st.composite
def views(draw: st.DrawFn) -> tuple[PlanInForce, list[AutoNode]]:
    names = [f"auto-{n}" for n in range(draw(st.integers(0, 8)))]
    nodes = [
        AutoNode(
            name,
            draw(st.sampled_from([5, 10, 20])),
            draw(st.sampled_from([(), (100,) * 12, (300,) * 12])),
            draw(
                st.none()
                | st.builds(SlotClaim, st.sampled_from([NUMBER - 1, NUMBER]), st.integers(0, 7))
            ),
            frozenset(draw(st.sets(st.integers(1, 12), max_size=4))),
        )
        for name in names
    ]
    slots = []
    for n in range(draw(st.integers(0, 5))):
        node = draw(st.sampled_from(["", "gone", *names]))
        need = draw(st.sampled_from([0, 7, 15]))
        slots.append(PlanSlot(2 * n + 1, 2 * n + 2, node, 210, need, draw(st.integers(1, 3))))
    return plan_of(*slots), nodes


@given(views(), st.randoms())
def test_nodes_with_the_same_view_agree(
    view: tuple[PlanInForce, list[AutoNode]], chance: random.Random
) -> None:
    plan, nodes = view
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    assert fill(plan, nodes) == fill(plan, shuffled)


@given(views())
def test_no_slot_gets_more_nodes_than_it_wants_and_none_lacks_one_that_fits(
    view: tuple[PlanInForce, list[AutoNode]],
) -> None:
    plan, nodes = view
    filled = fill(plan, nodes)
    for number, slot in enumerate(plan.slots):
        assert list(filled.values()).count(number) <= slot.replicas
    idle = [node for node in nodes if node.node not in filled]
    for number in empty(plan, filled):
        assert not any(node.room >= plan.slots[number].need for node in idle)


@given(views())
def test_who_claims_a_slot_alone_keeps_it(view: tuple[PlanInForce, list[AutoNode]]) -> None:
    plan, nodes = view
    filled = fill(plan, nodes)
    settled = [
        replace(node, claim=SlotClaim(NUMBER, filled[node.node]) if node.node in filled else None)
        for node in nodes
    ]
    assert fill(plan, settled) == filled
    newcomer = AutoNode("new", 100, (1,) * 12)
    joined = fill(plan, [*settled, newcomer])
    assert {node: slot for node, slot in joined.items() if node != "new"} == filled


def test_a_slot_goes_to_the_node_that_it_was_planned_for() -> None:
    plan = plan_of(PlanSlot(1, 2, "b"), PlanSlot(3, 4, "a"))
    assert fill(plan, [AutoNode("a"), AutoNode("b"), AutoNode("c")]) == {"b": 0, "a": 1}


def test_a_dead_nodes_slot_goes_to_one_that_is_fast_enough_and_holds_most_of_it() -> None:
    plan = plan_of(PlanSlot(1, 2, "dead", 200))
    slow = AutoNode("slow", pace_us=(300, 300), serves=frozenset({1, 2}))
    fast = AutoNode("fast", pace_us=(100, 100))
    holds = AutoNode("holds", pace_us=(100, 120), serves=frozenset({2}))
    assert fill(plan, [slow, fast]) == {"fast": 0}
    assert fill(plan, [slow, fast, holds]) == {"holds": 0}
    assert fill(plan, [slow]) == {"slow": 0}, "a slow node is better than none"


def test_two_that_filled_one_slot_are_told_apart_alike() -> None:
    claim = SlotClaim(NUMBER, 0)
    both = [AutoNode("a", claim=claim), AutoNode("b", claim=claim)]
    filled = fill(plan_of(PlanSlot(1, 2)), both)
    assert len(filled) == 1
    assert fill(plan_of(PlanSlot(1, 2)), both[::-1]) == filled


def test_a_node_without_room_fills_no_slot_unless_it_holds_its_stages() -> None:
    plan = plan_of(PlanSlot(1, 2, need=100))
    assert fill(plan, [AutoNode("a", room=99)]) == {}
    holder = AutoNode("a", 1, (), SlotClaim(NUMBER, 0), frozenset({1, 2}))
    assert fill(plan, [holder]) == {"a": 0}


def test_replicas_come_behind_the_first_node_of_every_slot() -> None:
    plan = plan_of(PlanSlot(1, 2, replicas=3), PlanSlot(3, 4))
    assert sorted(fill(plan, [AutoNode("a"), AutoNode("b")]).values()) == [0, 1]
    assert sorted(fill(plan, [AutoNode(n) for n in "abcd"]).values()) == [0, 0, 0, 1]


def test_a_former_holder_keeps_a_stage_until_the_holder_of_its_slot_serves_it() -> None:
    me = AutoNode("a", claim=SlotClaim(NUMBER, 0), serves=frozenset({1, 2, 3, 4}))
    loading = AutoNode("b", claim=SlotClaim(NUMBER, 1))
    assert to_hold(THREE, me, 0, [loading]) == {1, 2, 3, 4}
    half = replace(loading, serves=frozenset({3}))
    assert to_hold(THREE, me, 0, [half]) == {1, 2, 4}
    stranger = AutoNode("c", claim=SlotClaim(NUMBER - 1, 1), serves=frozenset({4}))
    assert to_hold(THREE, me, 0, [half, stranger]) == {1, 2, 4}, "it may let go as well"
    assert to_hold(THREE, me, None, [half]) == {1, 2, 4}


def test_a_node_without_room_for_both_lets_go_first() -> None:
    me = AutoNode("a", room=5, claim=SlotClaim(NUMBER, 1), serves=frozenset({1, 2, 3}))
    assert to_hold(THREE, me, 1, [], lambda stage: 1) == {1, 2, 3, 4, 5}
    assert to_hold(THREE, me, 1, [], lambda stage: 2) == {3}
    let_go = replace(me, serves=frozenset({3}))
    assert to_hold(THREE, let_go, 1, [], lambda stage: 2) == {3, 4, 5}


def test_stages_that_no_slot_has_are_let_go() -> None:
    plan = plan_of(PlanSlot(1, 2))
    me = AutoNode("a", claim=SlotClaim(NUMBER, 0), serves=frozenset({1, 2, 3}))
    assert to_hold(plan, me, 0, []) == {1, 2}, "nodes named by hand serve them"
    assert to_hold(None, me, None, []) == {1, 2, 3}


def test_the_view_is_what_gossip_tells() -> None:
    fills, claim = fills_entry("m", "1", 7, 2)
    pace, times = pace_entry("m", "1", [0, 250, 10**12])
    values = {"role": "auto", "room": 9, fills: claim, pace: times, "host": "h"}
    values |= serves_entries([("m", "1", 3), ("m", "1", 4)])
    assert all(valid(key, value) for key, value in values.items())
    hand = {"role": "shard-1", "priority": 0} | serves_entries([("m", "1", 1)])
    leaves = {"role": "auto", "draining": True}
    peers = [
        PeerView("a", "alive", 1, 1, values),
        PeerView("b", "alive", 1, 1, hand),
        PeerView("c", "alive", 1, 1, leaves),
    ]
    [node] = auto_nodes(peers, "m", "1")
    assert (node.node, node.room, node.claim, node.serves) == ("a", 9, SlotClaim(7, 2), {3, 4})
    assert node.pace_us[:2] == (1, 250)
    assert auto_nodes(peers, "m", "2")[0].claim is None
    assert named_by_hand(peers, "m", "1", 4) == {1}


def test_gossip_refuses_what_is_no_claim_and_no_pace() -> None:
    fills, claim = fills_entry("m", "1", 7, 2)
    pace, times = pace_entry("m", "1", [5])
    assert not valid("fills/000000000000", claim)
    assert not valid(fills, [*claim[:3], -1])
    assert not valid(pace, [*times[:2], [0]])
    assert not valid(pace, [*times[:2], [1] * 1000])
    assert not valid("room", -1)
