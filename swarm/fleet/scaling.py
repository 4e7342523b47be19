"""How many nodes a stage should have, from how busy its nodes are: every node decides alike. Pure.

A node's utilisation is the share of the time in which it computes the stage. The load of a stage is
the sum over its nodes: 1.4 keep two nodes busy by 70 %. It is followed with its slope (Holt, 1957:
exponential smoothing with a trend) and looked at a little ahead.

A node more is wanted where the nodes would be busy above `HIGH`, or where work piles up, for
`HIGH_FOR` seconds; a node less where all are busy below `LOW` for `LOW_FOR` seconds. In between
nobody moves, so a load that swings between the two does not move nodes to and fro.

Where a model's objective burns, one of its stages gets a node more even so: the one where a request
waits least for it (`gain`), if its nodes are busy above `LOW`; of a stage that is hardly used, a
further node makes nothing faster. Burn rates follow slowly, so the next one comes `BURN_AGAIN`
seconds after it serves at the earliest, and none is given back for `KEEP_FOR` after the burning.
Where an objective still burns `KEEP_FOR` after the last node came, nodes do not help it: it gets no
further one and keeps none, until it has not burned for `KEEP_FOR`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import ceil, inf

from swarm.fleet.advertised import Where
from swarm.flow.lasting import holds_since

HIGH, LOW = 0.7, 0.3  # utilisation
HIGH_FOR, LOW_FOR = 2.0, 120.0  # seconds
TOO_MUCH, LITTLE = 0.5, 0.1  # seconds of work that wait for each node
NEAR = 0.6  # utilisation below which no trend counts
AHEAD = 5.0  # seconds that the trend is looked ahead
SMOOTH, TREND = 0.3, 0.1  # weights of a second's sample in the level and in the slope
BURN_AGAIN, KEEP_FOR = 300.0, 1800.0  # seconds: the short windows of `swarm.flow.objective`
FULL = 0.99  # utilisation above which no queue is thought to be longer
MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class StageLoad:
    """nodes: ready primaries, with the standbys that have taken the stage, `helpers`. busy: the sum
    of their utilisations. work: seconds of work that wait for each of them. covers: nodes behind
    them. pace: seconds of computing that a request takes, 0.0 where nobody knows."""

    where: Where
    nodes: int
    busy: float = 0.0
    work: float = 0.0
    covers: int = 0
    pace: float = 0.0
    helpers: int = 0

    def gain(self) -> float:
        """Seconds that one more node takes off a request's wait: in a node's queue, and behind the
        work that has piled up. Each node's queue is taken as M/M/1: u / (1 - u) times the pace, by
        its share of the load."""
        before, after = (
            self.pace * share / (1 - share)
            for nodes in (self.nodes, self.nodes + 1)
            for share in [min(FULL, self.busy / nodes)]
        )
        return before - after + self.work / (self.nodes + 1)


@dataclass(slots=True)
class Trend:
    """A figure with its slope a second."""

    level: float = 0.0
    slope: float = 0.0
    at: float | None = None

    def add(self, value: float, now: float) -> None:
        """now: seconds of any monotonic clock."""
        if self.at is None:
            self.level, self.at = value, now
            return
        passed = now - self.at
        if passed <= 0:
            return
        self.at, before = now, self.level
        expected = self.level + self.slope * passed
        self.level = expected + (1 - (1 - SMOOTH) ** passed) * (value - expected)
        self.slope += (1 - (1 - TREND) ** passed) * ((self.level - before) / passed - self.slope)

    @property
    def ahead(self) -> float:
        """What is expected soon; never less than the present."""
        return max(self.level, self.level + self.slope * AHEAD)


@dataclass(slots=True)
class _Stage:
    busy: Trend = field(default_factory=Trend)
    nodes: int = 0
    high_since: float | None = None
    low_since: float | None = None
    wanted: int = 0


@dataclass(slots=True)
class _Burning:
    """A model's objective. since: it has burned without a break; last: it burned. asked: a node was
    wanted for it that did not serve yet, or came. kept: nodes of stages that got one. is_vain:
    nodes do not help it."""

    since: float | None = None
    last: float = -inf
    asked: float = -inf
    kept: dict[Where, int] = field(default_factory=dict)
    is_vain: bool = False


class Scaling:
    """The stages of a mesh, as one node has seen them over time."""

    def __init__(self) -> None:
        self._stages: dict[Where, _Stage] = {}
        self._burning: dict[str, _Burning] = {}

    def observe(
        self, loads: Iterable[StageLoad], now: float, burning: Collection[str] = ()
    ) -> dict[Where, int]:
        """Wanted nodes of each stage. now: seconds of any monotonic clock. burning: the models
        whose objective burns; of these all stages are among the loads."""
        loads = list(loads)
        self._stages = {each.where: self._stages.get(each.where, _Stage()) for each in loads}
        self._burning = {
            model: self._burning.get(model, _Burning())
            for model in {*self._burning, *burning}
            if model in burning or now - self._burning[model].last < KEEP_FOR
        }
        for each in loads:
            burns = self._burning.get(each.where[0])
            if burns is not None and each.nodes > max(1, self._stages[each.where].nodes):
                # A model with a stage that has just got a node does not ask for the next one at
                # once.
                burns.asked = now
            _look(self._stages[each.where], each, now, burns is not None and not burns.is_vain)
        wanted = {where: stage.wanted for where, stage in self._stages.items()}
        for model, burns in self._burning.items():
            own = [each for each in loads if each.where[0] == model]
            _help(burns, own, wanted, model in burning, now)
        return wanted

    @property
    def helped(self) -> frozenset[Where]:
        """The stages that have a node, or want one, for an objective."""
        return frozenset(where for burning in self._burning.values() for where in burning.kept)


def _help(
    burns: _Burning, loads: list[StageLoad], wanted: dict[Where, int], burning: bool, now: float
) -> None:
    """Raise what is wanted of the stages that get a node for a model's objective."""
    burns.since = holds_since(burns.since, burning, now)
    burns.last = now if burning else burns.last
    for load in loads:
        kept = burns.kept.get(load.where, 0)
        wanted[load.where] = max(wanted[load.where], kept)
        if wanted[load.where] > load.nodes:
            burns.asked = now  # one after the other
    if burns.since is None or burns.is_vain:
        return
    if burns.asked > -inf and now - max(burns.asked, burns.since) >= KEEP_FOR:
        burns.is_vain = True
        burns.kept.clear()
        return
    if now - burns.since < HIGH_FOR or now - burns.asked < BURN_AGAIN:
        return
    used = [
        load
        for load in loads
        if 0 < load.nodes < MOST_REPLICAS and (load.busy >= LOW * load.nodes or load.work > LITTLE)
    ]
    if used:
        most = max(used, key=lambda load: (load.gain(), load.busy / load.nodes, load.where))
        burns.asked = now
        burns.kept[most.where] = wanted[most.where] = most.nodes + 1


def _look(stage: _Stage, load: StageLoad, now: float, keeps: bool) -> None:
    """keeps: no node is given back."""
    stage.busy.add(load.busy, now)
    nodes = load.nodes
    if nodes != stage.nodes:
        # A node that comes or goes is no trend. How long the nodes were busy until then says
        # nothing about how busy they are now.
        stage.nodes, stage.busy.slope = nodes, 0.0
        stage.high_since = stage.low_since = None
    stage.wanted = stage.wanted or max(1, nodes)
    if not nodes:
        stage.high_since = stage.low_since = None
        return
    is_near = load.busy > NEAR * nodes
    is_high = (is_near and stage.busy.ahead > HIGH * nodes) or load.work > TOO_MUCH
    # With a node less, what is behind the primaries has to be there if the last one dies.
    may_go = nodes > 2 or load.covers > 0
    is_low = stage.busy.level < LOW * nodes and load.work <= LITTLE and nodes > 1 and may_go
    is_low = is_low and not keeps
    stage.high_since = holds_since(stage.high_since, is_high, now)
    stage.low_since = holds_since(stage.low_since, is_low, now)
    if stage.high_since is not None and now - stage.high_since >= HIGH_FOR:
        needed = ceil(load.busy / HIGH)
        stage.wanted = min(MOST_REPLICAS, max(nodes + 1, needed))
    elif stage.low_since is not None and now - stage.low_since >= LOW_FOR:
        stage.wanted = min(stage.wanted, nodes - 1)
    else:
        # A primary stays. A standby stays only while it is wanted.
        stage.wanted = max(1, nodes - load.helpers, min(stage.wanted, nodes))
