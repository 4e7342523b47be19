"""Standbys take the stages that lack nodes: each stage once, without going to and fro."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.fleet.advertised import Where, busy_entries, load_entries, serves_entries, takes_entries
from swarm.fleet.scaling import HIGH, HIGH_FOR, LITTLE, LOW_FOR, TOO_MUCH, Scaling
from swarm.fleet.warm_pool import (
    SETTLE,
    STEADY_FOR,
    Lacking,
    StageState,
    StandbyNode,
    assign,
    standbys_of,
    states_of,
)
from swarm.gossip import PeerView

STAGES: list[Where] = [("m", "1", stage) for stage in (1, 2, 3)]
ONE, TWO, THREE = STAGES
GOSSIP = 0.3  # seconds until a standby hears of another one
STEP = 0.1  # seconds


def ready(where: Where, primaries: int = 1, work: float = 0.0, covers: int = 1) -> StageState:
    return StageState(where, primaries, work, covers)


class Watcher:
    """One standby's view of what stages lack."""

    def __init__(self) -> None:
        self.lacking, self.scaling = Lacking(), Scaling()

    def observe(self, states: list[StageState], now: float) -> list[StageState]:
        wanted = self.scaling.observe([state.load for state in states], now)
        return self.lacking.observe(states, wanted, now)


@dataclass
class Pool:
    """Standbys of one model in simulated time; each hears of the others `GOSSIP` seconds late."""

    names: list[str]
    holds: dict[str, frozenset[Where]]
    now: float = 0.0
    states: dict[Where, StageState] = field(default_factory=lambda: {w: ready(w) for w in STAGES})
    told: dict[str, list[tuple[float, Where | None]]] = field(default_factory=dict)
    changes: int = 0

    def __post_init__(self) -> None:
        self.lacking = {name: Watcher() for name in self.names}
        self.takes: dict[str, Where | None] = dict.fromkeys(self.names)
        self.told = {name: [(0.0, None)] for name in self.names}

    def heard(self, name: str, by: str) -> Where | None:
        until = self.now if name == by else self.now - GOSSIP
        return [takes for at, takes in self.told[name] if at <= max(until, 0.0)][-1]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            for name in self.names:
                view = [StandbyNode(n, self.holds[n], self.heard(n, name)) for n in self.names]
                helped = [standby.takes for standby in view]
                seen = [replace(s, helpers=helped.count(w)) for w, s in self.states.items()]
                lacking = self.lacking[name].observe(seen, self.now)
                wanted = assign(lacking, view).get(name)
                if wanted != self.takes[name]:
                    self.changes += 1
                    self.takes[name] = wanted
                    self.told[name].append((self.now, wanted))

    def taken(self) -> list[Where]:
        return sorted(takes for takes in self.takes.values() if takes is not None)


def pool(count: int) -> Pool:
    names = [f"standby-{n}" for n in range(count)]
    settled = Pool(names, dict.fromkeys(names, frozenset(STAGES)))
    settled.run(SETTLE + 1)
    return settled


lost_stages = st.sets(st.sampled_from(STAGES))


@given(st.integers(1, 5), st.lists(lost_stages, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_each_stage_without_primaries_gets_one_standby_and_only_one(
    count: int, history: list[set[Where]]
) -> None:
    standbys = pool(count)
    for lost in history:
        standbys.states = {w: ready(w, int(w not in lost)) for w in STAGES}
        standbys.run(STEADY_FOR + 3)
        assert len(set(standbys.taken())) == len(standbys.taken()) == min(count, len(lost))
        assert set(standbys.taken()) <= lost
        changes = standbys.changes
        standbys.run(5)
        assert standbys.changes == changes, "they go to and fro"


@given(st.permutations(STAGES), st.permutations(["a", "b", "c", "d"]), st.data())
def test_all_standbys_decide_alike_in_whatever_order_they_hear(
    stages: list[Where], names: list[str], data: st.DataObject
) -> None:
    lost = data.draw(lost_stages)
    states = [ready(where, int(where not in lost)) for where in stages]
    lacking = Watcher()
    lacking.observe(states, 0.0)
    standbys = [StandbyNode(name, frozenset(STAGES)) for name in names]
    decided = assign(lacking.observe(states, SETTLE), standbys)
    other = Watcher()
    other.observe(states, 0.0)
    again = assign(other.observe(sorted(states, key=str), SETTLE), sorted(standbys, key=str))
    assert decided == again


def test_a_new_standby_waits_until_it_has_heard_of_all_nodes() -> None:
    standbys = pool(0)
    lacking = Watcher()
    lost = [ready(where, 0) for where in STAGES]
    assert lacking.observe(lost, standbys.now) == []
    assert lacking.observe(lost, standbys.now + SETTLE - 0.1) == []
    assert len(lacking.observe(lost, standbys.now + SETTLE)) == 3


def test_a_primary_that_comes_and_goes_does_not_move_a_standby() -> None:
    standbys = pool(1)
    standbys.states[TWO] = ready(TWO, 0)
    standbys.run(1)
    assert standbys.taken() == [TWO]
    for _ in range(10):
        standbys.states[TWO] = ready(TWO, 1)
        standbys.run(STEADY_FOR - 0.5)
        standbys.states[TWO] = ready(TWO, 0)
        standbys.run(0.5)
    assert standbys.changes == 1
    standbys.states[TWO] = ready(TWO, 1)
    standbys.run(STEADY_FOR + 0.5)
    assert standbys.taken() == []


def test_a_busy_stage_gets_a_standby_after_a_while_and_keeps_it_until_it_is_calm() -> None:
    standbys = pool(2)
    standbys.states[TWO] = ready(TWO, 2, TOO_MUCH + 0.1)
    standbys.run(HIGH_FOR - 0.5)
    assert standbys.taken() == []
    standbys.run(0.5 + 3 * STEP)
    assert standbys.taken() == [TWO]
    standbys.states[TWO] = ready(TWO, 2, (LITTLE + TOO_MUCH) / 2)
    standbys.run(2 * LOW_FOR)
    assert standbys.taken() == [TWO]
    standbys.states[TWO] = ready(TWO, 2, 0.0)
    standbys.run(LOW_FOR + 0.5)
    assert standbys.taken() == []


def test_a_stage_whose_nodes_compute_most_of_the_time_gets_as_many_standbys_as_it_needs() -> None:
    standbys = pool(3)
    standbys.states[TWO] = replace(ready(TWO), busy=0.9)
    standbys.run(HIGH_FOR + 8)
    assert standbys.taken() == [TWO]  # 0.45 each
    standbys.states[TWO] = replace(ready(TWO), busy=1.7)
    standbys.run(30)
    assert standbys.taken() == [TWO, TWO]
    assert HIGH > 2.0 / 3


def test_a_standby_comes_back_from_a_calm_stage_that_nobody_else_covers() -> None:
    standbys = pool(1)
    standbys.states[TWO] = replace(ready(TWO, covers=0), busy=0.9)
    standbys.run(HIGH_FOR + 8)
    assert standbys.taken() == [TWO]
    standbys.states[TWO] = ready(TWO, covers=0)
    standbys.run(LOW_FOR + 10)
    assert standbys.taken() == []


def test_a_busy_stage_that_has_lost_all_its_primaries_gets_more_than_one_standby() -> None:
    standbys = pool(3)
    standbys.states[TWO] = replace(ready(TWO, 0), busy=0.95)
    standbys.run(HIGH_FOR + 8)
    assert standbys.taken() == [TWO, TWO]
    standbys.states[TWO] = replace(ready(TWO, 1), busy=0.95)
    standbys.run(STEADY_FOR + 1)
    changes = standbys.changes
    standbys.run(20)
    assert standbys.changes == changes, "they go to and fro"
    standbys.states[TWO] = ready(TWO, 1)
    standbys.run(3 * LOW_FOR)
    assert standbys.taken() == []


def test_a_standby_leaves_a_busy_stage_for_one_without_nodes() -> None:
    standbys = pool(1)
    standbys.states[THREE] = ready(THREE, 1, TOO_MUCH * 2)
    standbys.run(HIGH_FOR + 0.5)
    assert standbys.taken() == [THREE]
    standbys.states[ONE] = ready(ONE, 0)
    standbys.run(0.5)
    assert standbys.taken() == [ONE]


def test_the_second_standby_of_a_lost_stage_leaves_it_for_one_without_nodes() -> None:
    standbys = pool(2)
    standbys.states[TWO] = replace(ready(TWO, 0), busy=0.95)
    standbys.run(HIGH_FOR + 8)
    assert standbys.taken() == [TWO, TWO]
    standbys.states[ONE] = ready(ONE, 0)
    standbys.run(1)
    assert standbys.taken() == [ONE, TWO]


def test_a_stage_that_nobody_covers_comes_before_one_with_a_fallback() -> None:
    standbys = pool(1)
    standbys.states[ONE] = ready(ONE, 0, covers=1)
    standbys.states[TWO] = ready(TWO, 0, covers=0)
    standbys.run(0.5)
    assert standbys.taken() == [TWO]


def test_a_standby_takes_only_what_it_holds() -> None:
    standbys = [StandbyNode("a", frozenset([ONE])), StandbyNode("b", frozenset([ONE, TWO]))]
    assert assign([ready(TWO, 0)], standbys) == {"b": TWO}
    assert assign([ready(THREE, 0)], standbys) == {}


def test_of_two_that_took_one_stage_one_keeps_it_and_the_other_takes_what_is_left() -> None:
    both = [StandbyNode(name, frozenset(STAGES), TWO) for name in ("a", "b")]
    assert len(assign([ready(TWO, 0)], both)) == 1
    assert sorted(assign([ready(TWO, 0), ready(THREE, 0)], both).values()) == [TWO, THREE]


def peer(node: str, role: str, stages: list[Where], priority: int, **more: object) -> PeerView:
    values = {"role": role, "priority": priority, **serves_entries(stages), **more}
    return PeerView(node, "alive", 1, 1, values)


def test_the_state_of_a_stage_is_read_from_the_gossip() -> None:
    busy = load_entries({TWO: [8, 2, 100_000, 0, 0, 0, 0, 0]})
    peers = [
        peer("p1", "shard-1", [ONE], 0),
        peer("p2", "shard-2", [TWO], 0, **busy),
        peer("p3", "shard-2", [TWO], 0, draining=True),
        peer("f", "fallback", STAGES, 2),
        peer("s1", "standby", STAGES, 3, **takes_entries([THREE])),
        peer("s2", "standby", STAGES, 1, draining=True),
    ]
    assert states_of(peers, STAGES) == [
        StageState(ONE, 1, 0.0, 1, spare=1),
        StageState(TWO, 1, 1.0, 1, spare=1, pace=0.1),
        StageState(THREE, 0, 0.0, 1, helpers=1),
    ]
    assert standbys_of(peers) == [StandbyNode("s1", frozenset(STAGES), THREE)]


def test_a_node_that_serves_two_versions_is_as_busy_as_both_make_it() -> None:
    """In a rollout half the requests go to each version: no node is given back for that."""
    new: Where = ("m", "2", 2)
    shares = busy_entries({TWO: 0.25}) | busy_entries({new: 0.25})
    peers = [peer(f"p{n}", "shard-2", [TWO, new], 0, **shares) for n in range(2)]
    peers += [peer("f", "fallback", STAGES, 2)]
    scaling = Scaling()
    for tick in range(round(LOW_FOR) + 10):
        loads = [state.load for state in states_of(peers, [TWO, new])]
        assert [load.busy for load in loads] == [1.0, 1.0]
        assert scaling.observe(loads, float(tick)) == {TWO: 2, new: 2}
