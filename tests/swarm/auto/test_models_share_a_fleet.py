"""Several models on one fleet, in simulated time: no device holds more than it has, models of high
priority keep their place, and nothing moves once all is placed."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from sim.auto.model_world import ModelWorld, SharedModel

SETTLES = 60.0  # seconds
# Seconds for which a model may be out that fits beside those that run, for each model: who cannot
# run gives up, and those that fit now draft, claim and load. Of those that claim the same room, one
# gets it each time.
A_TURN = 10.0
NAMES = "abcd"


def world_of(seed: int) -> ModelWorld:
    chance = Random(seed)
    devices = {
        f"d{n}": (chance.randint(20, 120), chance.choice([0.5, 1.0, 3.0]))
        for n in range(chance.randint(1, 3))
    }
    models = [
        SharedModel(
            name,
            chance.randint(0, 2),
            tuple(chance.randint(5, 50) for _ in range(chance.randint(1, 3))),
            chance.choice([100, 4000, 20000]),
        )
        for name in NAMES[: chance.randint(2, 4)]
    ]
    return ModelWorld(devices, models, seed)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_no_device_is_overcommitted_and_the_fleet_settles(seed: int) -> None:
    """Begun; without a device; with it again."""
    world = world_of(seed)
    highest = max(model.priority for model in world.models)
    first = [model for model in world.models if model.priority == highest]
    victim = sorted(world.devices)[seed % len(world.devices)]
    had = world.devices[victim]
    for phase in range(3 if len(world.devices) > 1 else 1):
        if phase == 1:
            world.kill(victim)
        elif phase == 2:
            world.start(victim, *had)
        world.run(SETTLES)
        assert not world.overcommitted
        assert not world.out_though_it_fits(), "who cannot run keeps no room from who could"
        assert world.longest_out <= A_TURN * len(world.models)
        if len(first) == 1 and placed_alone(world, first):
            assert first[0].name in world.placed()
        settled(world)


def placed_alone(world: ModelWorld, models: list[SharedModel]) -> bool:
    other = ModelWorld(dict(world.devices), models, world.seed)
    other.run(SETTLES / 4)
    return bool(other.placed())


def settled(world: ModelWorld) -> None:
    """Nothing moves while nothing changes, but for one plan for a gain."""
    world.run(SETTLES + 15)
    moves, planned = world.moves, world.planned
    world.run(SETTLES + 15)
    assert (world.moves, world.planned) == (moves, planned)


def test_lower_models_give_way_in_their_order_when_a_device_dies() -> None:
    models = [
        SharedModel("high", 10, (40, 40)),
        SharedModel("middle", 5, (60,)),
        SharedModel("low", 0, (50,)),
    ]
    world = ModelWorld({"one": (100, 1.0), "two": (70, 1.0), "three": (60, 1.0)}, models)
    world.run(SETTLES)
    assert world.placed() == {"high", "middle", "low"}
    world.kill("one")
    world.run(SETTLES)
    assert world.placed() == {"high"} or world.placed() == {"high", "middle"}
    assert not world.overcommitted


def test_a_plan_that_displaces_nobody_is_preferred() -> None:
    models = [SharedModel("high", 10, (40,)), SharedModel("low", 0, (60,))]
    world = ModelWorld({"one": (60, 1.0), "two": (60, 5.0), "three": (60, 1.0)}, models)
    world.run(SETTLES)
    assert world.placed() == {"high", "low"}
    low = next(node.device for node in world.nodes if node.model.name == "low" and node.serves)
    high = next(node.device for node in world.nodes if node.model.name == "high" and node.serves)
    world.kill(high)
    world.run(SETTLES)
    assert world.placed() == {"high", "low"}
    assert low in {n.device for n in world.nodes if n.model.name == "low" and n.serves}


def test_the_rest_of_a_model_that_cannot_run_is_for_lower_ones_and_comes_back_to_it() -> None:
    models = [
        SharedModel("high", 10, (40,)),
        SharedModel("middle", 5, (50, 50, 50)),
        SharedModel("low", 0, (40,)),
    ]
    world = ModelWorld({"one": (100, 1.0), "two": (50, 1.0), "three": (80, 1.0)}, models)
    world.run(SETTLES)
    placed = world.placed()
    assert placed >= {"high", "middle"}
    for again in range(2):
        world.kill("two")
        world.run(2 * A_TURN)
        assert world.placed() == {"high", "low"}, again
        world.start("two", 50, 1.0)
        world.run(2 * A_TURN)
        assert world.placed() == placed
    assert not world.overcommitted
    assert world.longest_out <= 2 * A_TURN
