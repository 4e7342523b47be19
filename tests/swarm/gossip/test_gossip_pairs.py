"""A mesh so small that a round reaches everybody: who speaks to whom, and how often."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.gossip_world import World

from swarm.gossip import LAN, Event, Gossip, GossipRequest
from swarm.security.mesh_keys import MeshKeys, new_key

ROUND = LAN.interval
SPOKEN = 100  # rounds


def spoken(nodes: int) -> float:
    """Exchanges a round, of two messages each, while nothing happens."""
    world = World(nodes, seed=3)
    world.run(10)
    before = messages(world)
    world.run(SPOKEN)
    return (messages(world) - before) / 2 / SPOKEN


def messages(world: World) -> int:
    return sum(node.messages for node in world.nodes.values())


@pytest.mark.parametrize(
    ("nodes", "exchanges"),
    [
        pytest.param(2, 1.0, id="the-only-pair-each-round"),
        pytest.param(3, 1.5, id="three-pairs-every-other-round"),
        pytest.param(4, 3.0, id="six-pairs-every-other-round"),
    ],
)
def test_a_pair_of_a_small_mesh_has_one_exchange_every_other_round(
    nodes: int, exchanges: float
) -> None:
    assert spoken(nodes) == pytest.approx(exchanges, rel=0.15)


def asked(effects: list[Any]) -> set[str]:
    return {effect.peer for effect in effects if isinstance(effect, GossipRequest)}


def settled(mesh: Any) -> tuple[dict[str, Any], float]:
    """Nodes that have met, and a moment at which all are due."""
    return mesh("a", "b", "c"), 1.4


def test_news_are_told_to_everybody_in_the_next_round(mesh: Any, deliver: Any) -> None:
    nodes, now = settled(mesh)
    deliver(nodes, "a", nodes["a"].tick(now), now)
    assert asked(nodes["a"].tick(now + ROUND)) == set()
    nodes["a"].detector.hurry()
    assert asked(nodes["a"].tick(now + 2 * ROUND - 0.01)) == {"b", "c"}


def test_whose_process_is_said_to_have_ended_is_asked_at_once_and_dead_if_nobody_listens(
    mesh: Any, deliver: Any
) -> None:
    nodes, now = settled(mesh)
    a = nodes["a"]
    effects = a.detector.ask_now("b", now)
    assert asked(effects) == {"b"}
    assert a.detector.ask_now("b", now) == [], "once"
    assert deliver(nodes, "a", effects, now) == [], "it answers: it was a rumour"
    assert a.peer("b", now).state == "alive"
    gone = {name: node for name, node in nodes.items() if name != "b"}
    now += 1.01 * ROUND
    told = deliver(gone, "a", a.detector.ask_now("b", now), now)
    assert [(by, event.kind, event.node) for by, event in told] == [
        ("a", "died", "b"),
        ("c", "died", "b"),
    ], "all know at once, and each has asked itself"
    assert a.peer("b", now).state == "dead"
    assert a.detector.ask_now("b", now) == [], "nothing is asked of the dead"
    assert a.detector.ask_now("nobody", now) == []


def test_a_death_is_told_at_once_and_many_deaths_in_one_go(mesh: Any, deliver: Any) -> None:
    names = ["a", "b", "c", "d"]
    nodes = mesh(*names)
    effects = [e for name in "bcd" for e in nodes["a"].detector.ask_now(name, 1.4)]
    told = [e for r in effects for e in nodes["a"].on_no_responders(r.token, 1.4)]
    assert [e.kind for e in told if isinstance(e, Event)] == ["died"] * 3
    assert asked(told) == {"c", "d"}, "of b, when they still seemed to live"


def test_a_process_without_a_socket_that_answers_is_not_asked_more_than_once_a_round(
    mesh: Any, deliver: Any
) -> None:
    nodes, now = settled(mesh)
    deliver(nodes, "a", nodes["a"].detector.ask_now("b", now), now)
    assert nodes["a"].detector.ask_now("b", now + ROUND / 2) == []
    assert asked(nodes["a"].detector.ask_now("b", now + 1.01 * ROUND)) == {"b"}


OLD, NEW = new_key(), new_key()
STEPS = [MeshKeys(OLD)]
for _ in range(3):
    STEPS.append(STEPS[-1].advanced(NEW))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(2, 9), data=st.data())
def test_while_each_node_takes_each_step_at_its_own_time_all_understand_each_other(
    seed: int, size: int, data: st.DataObject
) -> None:
    world = World(size, seed=seed, mesh_key=OLD)
    world.run(5)
    for step, keys in enumerate(STEPS[1:], 1):
        for name in data.draw(st.permutations(sorted(world.nodes))):
            world.nodes[name].gossip.use_keys(keys.accepted)
            world.set(name, "step", step)
            world.run(data.draw(st.integers(0, 3)))
        assert world.rounds_until(world.agree, 100) is not None
    assert world.counters()["forged"] == 0
    assert world.noted("died") == world.noted("suspected") == []
    stranger = Gossip("stranger", 1, Random(1), mesh_key=OLD)
    stranger.add_peer("node")
    syn = next(effect for effect in stranger.tick(0.0) if hasattr(effect, "token"))
    member = next(iter(world.nodes.values())).gossip
    assert member.on_request(syn.payload, world.now) == (None, []), "the old key is worth nothing"


@pytest.mark.parametrize(("first", "second"), [(0, 2), (1, 3), (0, 3)])
def test_who_is_two_steps_behind_is_not_understood(first: int, second: int) -> None:
    """So a step begins when all have the file of the last one."""
    speaks = Gossip("speaks", 1, Random(1), mesh_key=STEPS[second].accepted)
    hears = Gossip("hears", 1, Random(2), mesh_key=STEPS[first].accepted)
    answers = []
    for one, other in ((speaks, hears), (hears, speaks)):
        one.add_peer(other.node)
        syn = next(effect for effect in one.tick(0.0) if hasattr(effect, "token"))
        answers.append(other.on_request(syn.payload, 0.0)[0])
    assert None in answers
