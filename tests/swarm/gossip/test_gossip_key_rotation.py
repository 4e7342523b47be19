"""A mesh changes the key of its gossip in three steps, and nobody is lost on the way."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.gossip_world import World

from swarm.gossip import Gossip
from swarm.security.mesh_keys import MeshKeys, new_key

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
