"""Whatever happened: when it is quiet again, all nodes see the same mesh."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim.gossip_world import World

from swarm.gossip import GossipConfig

_STEP = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.just("pause"), st.integers(0, 20), st.integers(1, 30)),
    st.tuples(st.just("split"), st.integers(0, 20), st.integers(0, 1)),
    st.tuples(st.just("heal"), st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.just("crash"), st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.just("leave"), st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.just("join"), st.integers(0, 20), st.integers(0, 3)),
)


def _apply(world: World, step: tuple[str, int, int], count: int) -> None:
    kind, which, number = step
    alive = world.alive()
    if not alive:
        return
    node = alive[which % len(alive)]
    now = world.now + node.clock
    if kind == "set":
        node.gossip.set(f"key-{number}", {"count": count}, now)
    elif kind == "delete":
        node.gossip.delete(f"key-{number}", now)
    elif kind == "pause":
        world.pause(node.name, number / 10)
    elif kind == "split":
        names = [each.name for each in alive[: which % len(alive)]]
        world.split(names, ("silent", "no_responders")[number])
    elif kind == "heal":
        world.heal()
    elif kind == "join":
        world.join(node.name)
    elif len(alive) > 2:
        (world.crash if kind == "crash" else world.leave)(node.name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.tuples(_STEP, st.integers(0, 12)), max_size=14),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    seed=st.integers(0, 1000),
    key=st.sampled_from([None, b"a key of sixteen"]),
)
def test_after_any_history_a_quiet_mesh_agrees_on_who_lives_and_what_they_say(
    steps: list[tuple[Any, int]], loss: float, seed: int, key: bytes | None
) -> None:
    world = World(5, seed=seed, loss=loss, mesh_key=key)
    for count, (step, rounds) in enumerate(steps):
        _apply(world, step, count)
        world.run(rounds)
    world.run(40)  # pauses end
    world.loss = 0.0
    world.heal()
    alive = world.alive()
    for node in alive:  # a newcomer's only contact may have died before it spoke of it
        node.gossip.add_peer(alive[0].name)
    assert world.rounds_until(world.agree, 300) is not None
    world.run(20)
    assert world.agree(), "it stays so"
    assert world.largest <= world.config.message_bytes


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    nodes=st.integers(2, 25),
)
def test_no_message_exceeds_its_budget_and_everything_arrives_all_the_same(
    sizes: list[int], seed: int, nodes: int
) -> None:
    config = GossipConfig(message_bytes=1536, value_bytes=512)
    world = World(nodes, seed=seed, config=config, mesh_key=b"0123456789abcdef", warm=False)
    for node in list(world.nodes):
        for number, size in enumerate(sizes):
            try:
                world.set(node, f"k{number}", b"x" * size)
            except ValueError:
                break  # this node is full
    assert world.rounds_until(world.agree, 400) is not None
    assert 0 < world.largest <= 1536


def test_clocks_that_are_hours_apart_do_not_matter() -> None:
    world = World(8, seed=1)
    clocks = [node.clock for node in world.nodes.values()]
    assert max(clocks) - min(clocks) > 3600
    names = list(world.nodes)
    world.set(names[0], "load", 0.5)
    world.crash(names[1])
    assert world.rounds_until(world.agree, 20) is not None
    assert world.knowing(names[0], "load", 0.5) == 7
    assert not world.counters()


def test_constant_churn_leaves_no_trace() -> None:
    """Every round a node joins and another crashes or leaves, for twenty rounds."""
    world = World(20, seed=2, config=GossipConfig(tombstone=3.0))
    for turn in range(20):
        alive = [node.name for node in world.alive()]
        world.join(alive[-1])
        (world.crash if turn % 2 else world.leave)(alive[0])
        world.run(1)
    assert world.rounds_until(world.agree, 60) is not None
    world.run(80)
    assert world.agree()
    for node in world.alive():
        known = node.gossip.view(world.now + node.clock)
        assert set(known) == {each.name for each in world.alive()}, "tombstones have expired"
