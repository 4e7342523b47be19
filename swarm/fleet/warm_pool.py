"""Which standby takes which stage: every standby decides alike, without an election. Pure.

A standby holds sessions of any stage of its model. A stage lacks nodes when no primary is ready, or
when more are wanted than it has (`swarm.fleet.scaling`). Each node that it lacks is a standby: one
that has it already, else the first free one that holds it, by rendezvous hashing. Two standbys that
take the same place, because their views of the mesh differed for a moment, are told apart by the
same hashing: the second gives it back as soon as it hears of the first.

Hysteresis keeps stages from going to and fro: a stage that has lost its primaries lacks at once,
and is given back when they have been ready for `STEADY_FOR` seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.fleet.advertised import Where, serving, stage_busy, stage_loads, takes_of
from swarm.fleet.priorities import PRIMARY
from swarm.fleet.scaling import StageLoad
from swarm.gossip import PeerView
from swarm.routing.rendezvous import rendezvous

ROLE = "standby"
SETTLE = 2.0  # seconds of a new standby, until it has heard of all nodes
STEADY_FOR = 2.0  # seconds
WAITING, IN_HAND, COMPUTE_US = 0, 1, 2  # numbers of a load, as gossiped


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage as gossip tells it. primaries: ready ones, without standbys. work: seconds of work
    that wait for each node. covers: further nodes that serve it, behind the primaries, without
    standbys. helpers: standbys that have taken it; spare: those that have not. busy: the sum of the
    utilisations of all that serve it, by this stage in all versions: a node that serves two is as
    busy as both make it. pace: seconds of a run."""

    where: Where
    primaries: int
    work: float = 0.0
    covers: int = 0
    helpers: int = 0
    busy: float = 0.0
    spare: int = 0
    pace: float = 0.0

    @property
    def load(self) -> StageLoad:
        """The stage's load. Its helpers count among the covers too: a standby that gives the stage
        back covers it again."""
        nodes = self.primaries + self.helpers
        covers = self.covers + self.helpers + self.spare
        return StageLoad(self.where, nodes, self.busy, self.work, covers, self.pace, self.helpers)


@dataclass(frozen=True, slots=True)
class StandbyNode:
    """A living standby: the stages that it holds, and the one that it has taken."""

    node: str
    holds: frozenset[Where]
    takes: Where | None = None


def states_of(peers: Collection[PeerView], stages: Iterable[Where]) -> list[StageState]:
    """The present state of these stages. peers: the living nodes."""
    loads = {peer.node: dict(stage_loads(peer.values)) for peer in peers}
    busy = {peer.node: _busy_of(peer.values, loads[peer.node]) for peer in peers}
    standbys = {peer.node for peer in peers if peer.values.get("role") == ROLE}
    found = []
    for where in stages:
        able = [peer for peer in serving(peers, *where) if not peer.draining]
        ready = [p.node for p in able if p.priority == PRIMARY and p.node not in standbys]
        rows = [loads[peer.node][where] for peer in able if where in loads[peer.node]]
        messages = max([row[WAITING] for row in rows], default=0) + sum(r[IN_HAND] for r in rows)
        pace = max([row[COMPUTE_US] for row in rows], default=0) / 1e6
        helpers = [p.node for p in able if p.priority == PRIMARY and p.node in standbys]
        work = messages * pace / max(1, len(ready) + len(helpers))
        used = sum(busy[node].get((where[0], where[2]), 0.0) for node in (*ready, *helpers))
        spare = len([peer for peer in able if peer.node in standbys]) - len(helpers)
        covers = len(able) - len(ready) - len(helpers) - spare
        found.append(StageState(where, len(ready), work, covers, len(helpers), used, spare, pace))
    return found


def _busy_of(values: Mapping[str, object], serves: Iterable[Where]) -> dict[tuple[str, int], float]:
    """A node's utilisation by each of its stages, all versions of a model together."""
    found: dict[tuple[str, int], float] = {}
    for where in serves:
        stage = where[0], where[2]
        found[stage] = min(1.0, found.get(stage, 0.0) + stage_busy(values, where))
    return found


def standbys_of(peers: Iterable[PeerView]) -> list[StandbyNode]:
    """The standbys of the mesh that can take a stage, or have taken one. peers: the living
    nodes."""
    return [
        StandbyNode(
            peer.node,
            frozenset(where for where, _ in stage_loads(peer.values)),
            next(iter(takes_of(peer.values)), None),
        )
        for peer in peers
        if peer.values.get("role") == ROLE and peer.values.get("draining") is not True
    ]


@dataclass(slots=True)
class _Watched:
    """lost: whether the stage lacks for having lost its primaries. since: for how long it has had
    them again."""

    lost: bool = False
    since: float | None = None


class Lacking:
    """Which stages lack nodes, as one standby has seen it over time."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._stages: dict[Where, _Watched] = {}

    def observe(
        self, states: Sequence[StageState], wanted: Mapping[Where, int], now: float
    ) -> list[StageState]:
        """Those of the stages that lack nodes, by need; a stage stands there as often as it lacks
        one. wanted: nodes of each (`swarm.fleet.scaling`). now: seconds of any monotonic clock."""
        self._first = now if self._first is None else self._first
        if now - self._first < SETTLE:
            return []
        self._stages = {s.where: self._stages.get(s.where, _Watched()) for s in states}
        lacking: list[StageState] = []
        for state in states:
            watched = self._stages[state.where]
            _watch(watched, state, now)
            least = 1 if watched.lost else 0
            served = state.primaries or state.helpers
            more = wanted[state.where] - state.primaries if served else 1
            lacking += [state] * max(least, more)
        return sorted(lacking, key=_by_need)


def _watch(stage: _Watched, state: StageState, now: float) -> None:
    """Take the present state of a stage into its history."""
    if not state.primaries:
        stage.lost, stage.since = True, None
    elif stage.lost:
        stage.since = now if stage.since is None else stage.since
        stage.lost = now - stage.since < STEADY_FOR


def _by_need(state: StageState) -> tuple[object, ...]:
    """A stage without a primary comes first, and of these one that nobody covers."""
    return bool(state.primaries), bool(state.covers), -state.work, state.where


def assign(lacking: Sequence[StageState], standbys: Iterable[StandbyNode]) -> dict[str, Where]:
    """The stage of each standby that is to have one. lacking: by need."""
    free = {standby.node: standby for standby in standbys}
    assigned: dict[str, Where] = {}

    def give(where: Where, nodes: Iterable[str]) -> bool:
        for node in rendezvous("/".join(map(str, where)), nodes)[:1]:
            assigned[node] = where
            del free[node]
            return True
        return False

    lost: list[Where] = []
    busy: list[Where] = []
    for state in lacking:
        needs_one = not state.primaries and state.where not in lost
        (lost if needs_one else busy).append(state.where)
    for stages, others in ((lost, busy), (busy, lost)):
        left = [w for w in stages if not give(w, [n for n, s in free.items() if s.takes == w])]
        # A standby that helps a busy stage leaves it for one that has no node at all, if no other
        # standby is free.
        helped = set(others)
        for where in left:
            able = [node for node, standby in free.items() if where in standby.holds]
            idle = [node for node in able if free[node].takes not in helped]
            give(where, idle or able)
    return assigned
