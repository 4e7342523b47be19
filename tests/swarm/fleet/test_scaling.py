"""Wanted nodes follow the load, look ahead, and do not go to and fro."""

from __future__ import annotations

from math import pi, sin

from hypothesis import given
from hypothesis import strategies as st

from swarm.fleet.advertised import Where
from swarm.fleet.scaling import HIGH, HIGH_FOR, LOW_FOR, MOST_REPLICAS, Scaling, StageLoad

STAGE: Where = ("m", "1", 1)
STEP = 0.3  # seconds
STARTS = 3.0  # seconds until a node that is wanted serves


class Fleet:
    """Nodes of one stage, in simulated time: as many as are wanted, a little later. load: nodes
    that would be busy all the time."""

    def __init__(self, most: int = MOST_REPLICAS) -> None:
        self.scaling, self.nodes, self.most = Scaling(), 1, most
        self.now, self.moves, self.since = 0.0, 0, 0.0
        self.over = 0.0  # seconds in which there were too few

    def run(self, seconds: float, load: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            self.step(load)

    def step(self, load: float) -> None:
        busy = min(load, float(self.nodes))
        work = 1.0 if load > self.nodes else 0.0
        self.over += STEP * (load > self.nodes)
        seen = StageLoad(STAGE, self.nodes, busy, work, covers=1)
        wanted = min(self.most, self.scaling.observe([seen], self.now)[STAGE])
        if wanted == self.nodes:
            self.since = self.now
        elif self.now - self.since >= STARTS:
            self.nodes, self.since = wanted, self.now
            self.moves += 1


def test_a_step_from_one_to_three_gets_its_nodes_and_gives_them_back_when_it_is_over() -> None:
    fleet = Fleet()
    fleet.run(60, 0.6)
    assert (fleet.nodes, fleet.moves) == (1, 0)
    fleet.run(30, 1.8)
    assert fleet.nodes == 3
    assert fleet.over < 15
    fleet.run(LOW_FOR / 2, 0.2)
    assert fleet.nodes == 3
    fleet.run(3 * LOW_FOR, 0.2)
    assert fleet.nodes == 1


@given(st.floats(20, 200), st.floats(0.1, 1.5), st.floats(0.0, 1.0))
def test_a_swinging_load_does_not_move_nodes_to_and_fro(
    period: float, middle: float, swing: float
) -> None:
    fleet = Fleet()
    while fleet.now < 600:
        fleet.now += STEP
        fleet.step(middle * (1 + swing * sin(2 * pi * fleet.now / period)))
    assert fleet.moves <= 4 + 2 * (period > LOW_FOR) * 600 / period


@given(st.integers(1, 8), st.floats(0, 8), st.floats(0, 8))
def test_more_load_never_wants_fewer_nodes(nodes: int, one: float, other: float) -> None:
    def wanted(busy: float) -> int:
        scaling = Scaling()
        for tick in range(round((LOW_FOR + 5) / STEP)):
            load = StageLoad(STAGE, nodes, min(busy, float(nodes)), covers=1)
            found = scaling.observe([load], tick * STEP)[STAGE]
        return found

    less, more = sorted((one, other))
    assert wanted(less) <= wanted(more)


def test_a_load_that_grows_gets_its_node_before_it_is_needed() -> None:
    fleet = Fleet()
    while fleet.nodes == 1:
        fleet.now += STEP
        fleet.step(fleet.now / 100)
    assert fleet.now / 100 < HIGH + 0.1


def test_nothing_moves_for_a_moment_of_load_and_the_last_two_stay_where_nothing_covers() -> None:
    scaling = Scaling()
    for tick in range(5):
        scaling.observe([StageLoad(STAGE, 1, 0.1)], tick * STEP)
    peak = StageLoad(STAGE, 1, 1.0, 2.0)
    assert scaling.observe([peak], 5 * STEP)[STAGE] == 1
    assert scaling.observe([peak], 5 * STEP + HIGH_FOR)[STAGE] == 2
    idle = StageLoad(STAGE, 2, 0.0, covers=0)
    for tick in range(round(2 * LOW_FOR)):
        assert scaling.observe([idle], 20.0 + tick)[STAGE] == 2
