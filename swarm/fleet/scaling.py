"""How many nodes a stage should have, from how busy its nodes are: every node decides alike. Pure.

A node's utilisation is the share of the time in which it computes the stage. The load of a stage is
the sum over its nodes: 1.4 keep two nodes busy by 70 %. It is followed with its slope (Holt, 1957:
exponential smoothing with a trend) and looked at a little ahead.

A node more is wanted where the nodes would be busy above `HIGH`, or where work piles up, for
`HIGH_FOR` seconds; a node less where all are busy below `LOW` for `LOW_FOR` seconds. In between
nobody moves, so a load that swings between the two does not move nodes to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from swarm.fleet.advertised import Where
from swarm.flow.lasting import holds_since

HIGH, LOW = 0.7, 0.3  # utilisation
HIGH_FOR, LOW_FOR = 2.0, 120.0  # seconds
TOO_MUCH, LITTLE = 0.5, 0.1  # seconds of work that wait for each node
NEAR = 0.6  # utilisation below which no trend counts
AHEAD = 5.0  # seconds that the trend is looked ahead
SMOOTH, TREND = 0.3, 0.1  # weights of a second's sample in the level and in the slope
MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class StageLoad:
    """nodes: ready primaries, with the standbys that have taken the stage. busy: the sum of their
    utilisations. work: seconds of work that wait for each of them. covers: nodes behind them."""

    where: Where
    nodes: int
    busy: float = 0.0
    work: float = 0.0
    covers: int = 0


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


class Scaling:
    """The stages of a mesh, as one node has seen them over time."""

    def __init__(self) -> None:
        self._stages: dict[Where, _Stage] = {}

    def observe(self, loads: Iterable[StageLoad], now: float) -> dict[Where, int]:
        """Wanted nodes of each stage. now: seconds of any monotonic clock."""
        loads = list(loads)
        self._stages = {each.where: self._stages.get(each.where, _Stage()) for each in loads}
        for each in loads:
            _look(self._stages[each.where], each, now)
        return {where: stage.wanted for where, stage in self._stages.items()}


def _look(stage: _Stage, load: StageLoad, now: float) -> None:
    stage.busy.add(load.busy, now)
    nodes = load.nodes
    if nodes != stage.nodes:
        stage.nodes, stage.busy.slope = nodes, 0.0  # a node that comes or goes is no trend
    stage.wanted = stage.wanted or max(1, nodes)
    if not nodes:
        stage.high_since = stage.low_since = None
        return
    is_near = load.busy > NEAR * nodes
    is_high = (is_near and stage.busy.ahead > HIGH * nodes) or load.work > TOO_MUCH
    # With a node less, what is behind the primaries has to be there if the last one dies.
    may_go = nodes > 2 or load.covers > 0
    is_low = stage.busy.level < LOW * nodes and load.work <= LITTLE and nodes > 1 and may_go
    stage.high_since = holds_since(stage.high_since, is_high, now)
    stage.low_since = holds_since(stage.low_since, is_low, now)
    if stage.high_since is not None and now - stage.high_since >= HIGH_FOR:
        needed = ceil(load.busy / HIGH)
        stage.wanted = min(MOST_REPLICAS, max(nodes + 1, needed))
    elif stage.low_since is not None and now - stage.low_since >= LOW_FOR:
        stage.wanted = min(stage.wanted, nodes - 1)
    else:
        stage.wanted = max(1, min(stage.wanted, nodes))
