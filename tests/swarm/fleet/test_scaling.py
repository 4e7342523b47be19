"""Wanted nodes follow the load, look ahead, and do not go to and fro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import pi, sin

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.fleet.advertised import Where
from swarm.fleet.scaling import (
    BURN_AGAIN,
    HIGH,
    HIGH_FOR,
    KEEP_FOR,
    LOW_FOR,
    MOST_REPLICAS,
    Scaling,
    StageLoad,
)

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


def test_how_long_a_number_of_nodes_was_busy_says_nothing_of_another_number() -> None:
    scaling, now = Scaling(), 0.0

    def look(nodes: int, work: float, seconds: float) -> int:
        nonlocal now
        until = now + seconds
        while now < until:
            now += STEP
            found = scaling.observe([StageLoad(STAGE, nodes, 0.3, work, covers=1)], now)[STAGE]
        return found

    assert look(1, 1.0, HIGH_FOR - STEP) == 1
    assert look(2, 1.0, HIGH_FOR - STEP) == 2, "the second node has come just now"
    assert look(2, 1.0, 2 * STEP) == 3
    assert look(3, 0.0, LOW_FOR + 10) == 2
    assert look(2, 0.0, LOW_FOR - 10) == 2, "two are watched as long as three were"
    assert look(2, 0.0, 20) == 1


class Promised:
    """Stages of one model whose objective burns at times: as many nodes as are wanted, `STARTS`
    later. busy: of each stage, nodes that would be busy all the time; pace: seconds of a run."""

    def __init__(self, busy: Mapping[int, float], pace: float = 0.01) -> None:
        self.scaling, self.busy, self.pace, self.now = Scaling(), busy, pace, 0.0
        self.nodes = dict.fromkeys(busy, 1)
        self.since = dict.fromkeys(busy, 0.0)
        self.moves: list[tuple[float, int, int]] = []

    def run(self, seconds: float, burns: Callable[[float], bool], step: float = 1.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += step
            loads = [
                StageLoad(("m", "1", s), n, min(self.busy[s], float(n)), 0.0, 1, self.pace * s)
                for s, n in self.nodes.items()
            ]
            burning = {"m"} if burns(self.now) else set()
            wanted = self.scaling.observe(loads, self.now, burning)
            for stage, nodes in self.nodes.items():
                want = wanted["m", "1", stage]
                if want == nodes:
                    self.since[stage] = self.now
                elif self.now - self.since[stage] >= STARTS:
                    self.nodes[stage], self.since[stage] = want, self.now
                    self.moves.append((self.now, stage, want - nodes))


def always(now: float) -> bool:
    return True


def never(now: float) -> bool:
    return False


def test_an_objective_that_burns_adds_one_node_where_requests_wait_most_below_70_percent() -> None:
    fleet = Promised({1: 0.45, 2: 0.5, 3: 0.1})
    fleet.run(60, never)
    assert fleet.moves == []
    fleet.run(BURN_AGAIN, always)
    assert fleet.nodes == {1: 1, 2: 2, 3: 1}
    fleet.run(BURN_AGAIN, always)
    assert fleet.nodes == {1: 2, 2: 2, 3: 1}, "the next one where it helps most by then"
    fleet.run(4 * BURN_AGAIN, always)
    assert len(fleet.moves) == 2, "no stage is used enough for a further one to help"
    assert fleet.scaling.helped == {("m", "1", 1), ("m", "1", 2)}


def test_an_objective_that_no_node_helps_gives_its_nodes_back_and_gets_none_until_it_is_calm() -> (
    None
):
    fleet = Promised({1: 0.5})
    fleet.run(KEEP_FOR, always)
    assert fleet.nodes == {1: 2}
    fleet.run(LOW_FOR + 60, always)
    assert (fleet.nodes, fleet.scaling.helped) == ({1: 1}, frozenset())
    fleet.run(3 * KEEP_FOR, always)
    fleet.run(KEEP_FOR - 10, never)
    fleet.run(60, always)
    assert fleet.nodes == {1: 1}, "it has not been calm for long enough"
    fleet.run(KEEP_FOR + 10, never)
    fleet.run(60, always)
    assert fleet.nodes == {1: 2}


def test_a_node_that_came_for_an_objective_does_not_want_the_next_one_at_once() -> None:
    scaling = Scaling()
    loads = [StageLoad(STAGE, 2, 1.2, pace=0.01)]
    found = {at: scaling.observe(loads, float(at), {"m"})[STAGE] for at in range(400)}
    assert {found[at] for at in range(int(BURN_AGAIN))} == {2}
    assert found[int(BURN_AGAIN)] == 3


def test_an_objective_that_burns_adds_no_node_to_idle_stages_nor_for_a_moment() -> None:
    idle = Promised({1: 0.2, 2: 0.1})
    idle.run(2 * BURN_AGAIN, always)
    assert idle.moves == []
    used = Promised({1: 0.5})
    used.run(1200, lambda now: now % 10 < HIGH_FOR)
    assert used.moves == []


def test_what_an_objective_got_is_kept_for_half_an_hour_and_then_given_back_once() -> None:
    fleet = Promised({1: 0.5})
    fleet.run(60, always)
    assert fleet.nodes == {1: 2}
    fleet.run(KEEP_FOR - 10, never)
    assert fleet.nodes == {1: 2}
    fleet.run(LOW_FOR + 60, never)
    assert (fleet.nodes, len(fleet.moves)) == ({1: 1}, 2)


@settings(max_examples=20, deadline=None)
@given(
    st.dictionaries(st.integers(1, 3), st.floats(0.0, 0.69), min_size=1),
    st.floats(10, 4000),
    st.floats(0, 1),
)
def test_an_objective_that_burns_now_and_then_moves_no_node_to_and_fro(
    busy: dict[int, float], period: float, share: float
) -> None:
    """In two hours: few nodes come, and of those each is given back once in half an hour."""
    fleet = Promised(busy)
    fleet.run(7200, lambda now: now % period < share * period, step=2.0)
    came = [at for at, _, by in fleet.moves if by > 0]
    went = [at for at, _, by in fleet.moves if by < 0]
    assert len(came) <= len(busy) * (1 + 7200 / KEEP_FOR)
    assert all(any(before < at for before in came) for at in went)
    assert all(after - before >= BURN_AGAIN for before, after in pairwise(came))
    for at in went:
        since = max(before for before in came if before < at)
        assert at - since >= KEEP_FOR


def test_nodes_that_somebody_else_started_are_wanted_until_they_have_been_calm() -> None:
    scaling = Scaling()
    found = [scaling.observe([StageLoad(STAGE, n, 0.5 * n)], n)[STAGE] for n in (1, 2, 3)]
    assert found == [1, 2, 3]
    helped = StageLoad(STAGE, 4, 2.0, helpers=1)
    assert scaling.observe([helped], 4.0)[STAGE] == 3, "a standby that nobody wanted goes"
