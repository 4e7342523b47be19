"""Which standby takes which stage: every standby decides alike, without an election. Pure.

A standby holds sessions of any stage of its model. A stage lacks nodes when no primary is ready, or
when its primaries have more work than they can do. Each stage that lacks gets one standby: the one
that has it already, else the first free one that holds it, by rendezvous hashing. Two standbys that
take the same stage, because their pictures of the mesh differed for a moment, are told apart by the
same hashing: the second gives it back as soon as it hears of the first.

Hysteresis keeps stages from going to and fro: a stage that has lost its primaries lacks at once,
and is given back when they have been ready for `STEADY_FOR` seconds; work must be too much for
`BUSY_FOR` seconds, and little for `CALM_FOR`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from swarm.fleet.advertised import Where, serving, stage_loads, takes_of
from swarm.fleet.priorities import PRIMARY
from swarm.gossip import PeerView
from swarm.routing.rendezvous import rendezvous

ROLE = "standby"
SETTLE = 2.0  # seconds of a new standby, until it has heard of all nodes
STEADY_FOR = 2.0  # seconds
BUSY_FOR, CALM_FOR = 2.0, 10.0  # seconds
TOO_MUCH, LITTLE = 0.5, 0.1  # seconds of work that wait for each primary
WAITING, IN_HAND, COMPUTE_US = 0, 1, 2  # numbers of a load, as gossiped


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage as gossip tells it. primaries: ready ones, without standbys. work: seconds of work
    that wait for each of them. covers: further nodes that serve it, behind the primaries."""

    where: Where
    primaries: int
    work: float = 0.0
    covers: int = 0


@dataclass(frozen=True, slots=True)
class StandbyNode:
    """A living standby: the stages that it holds, and the one that it has taken."""

    node: str
    holds: frozenset[Where]
    takes: Where | None = None


def states_of(peers: Collection[PeerView], stages: Iterable[Where]) -> list[StageState]:
    """The present state of these stages. peers: the living nodes."""
    loads = {peer.node: dict(stage_loads(peer.values)) for peer in peers}
    standbys = {peer.node for peer in peers if peer.values.get("role") == ROLE}
    found = []
    for where in stages:
        able = [peer for peer in serving(peers, *where) if not peer.draining]
        ready = [p.node for p in able if p.priority == PRIMARY and p.node not in standbys]
        rows = [loads[peer.node][where] for peer in able if where in loads[peer.node]]
        messages = max([row[WAITING] for row in rows], default=0) + sum(r[IN_HAND] for r in rows)
        pace = max([row[COMPUTE_US] for row in rows], default=0) / 1e6
        work = messages * pace / max(1, len(ready))
        covers = len([peer for peer in able if peer.node not in standbys]) - len(ready)
        found.append(StageState(where, len(ready), work, covers))
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
    """since: for how long the present state speaks for a change of `lacks`; None while it does
    not. lost: whether the stage lacks for having lost its primaries."""

    lacks: bool = False
    lost: bool = False
    since: float | None = None


class Lacking:
    """Which stages lack nodes, as one standby has seen it over time."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._stages: dict[Where, _Watched] = {}

    def observe(self, states: Sequence[StageState], now: float) -> list[StageState]:
        """Those of the stages that lack nodes, by need. now: seconds of any monotonic clock."""
        self._first = now if self._first is None else self._first
        if now - self._first < SETTLE:
            return []
        self._stages = {s.where: self._stages.get(s.where, _Watched()) for s in states}
        for state in states:
            _watch(self._stages[state.where], state, now)
        return sorted((s for s in states if self._stages[s.where].lacks), key=_by_need)


def _watch(stage: _Watched, state: StageState, now: float) -> None:
    """Take the present state of a stage into its history."""
    if not state.primaries:
        stage.lacks, stage.lost, stage.since = True, True, None
        return
    for_change = state.work <= LITTLE if stage.lacks else state.work > TOO_MUCH
    if not for_change:
        stage.since = None
        return
    stage.since = now if stage.since is None else stage.since
    given_back_after = STEADY_FOR if stage.lost else CALM_FOR
    lasts = given_back_after if stage.lacks else BUSY_FOR
    if now - stage.since >= lasts:
        stage.lacks, stage.lost, stage.since = not stage.lacks, False, None


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

    for lost in (True, False):
        stages = [s.where for s in lacking if bool(s.primaries) is not lost]
        kept = [w for w in stages if give(w, [n for n, s in free.items() if s.takes == w])]
        # A standby that helps a busy stage leaves it for one that has no node at all, if no other
        # standby is free.
        helped = {s.where for s in lacking if s.where not in stages}
        for where in stages:
            if where in kept:
                continue
            able = [node for node, standby in free.items() if where in standby.holds]
            idle = [node for node in able if free[node].takes not in helped]
            give(where, idle or able)
    return assigned
