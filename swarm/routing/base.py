"""The interface of a routing policy, and the counts that all of them keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from math import inf
from random import Random
from typing import ClassVar

from swarm.routing.candidate import Candidate, Candidates, RequestInfo

NEWS_WEIGHT = 0.1
"""Of the newest gossip in what is believed of others' requests: at a round of 100 ms this averages
over a second. Taken as told (1.0), news that are 100 ms old make every requester run to the node
that looked idle (simulated: p99 of 8 nodes at 75 % load 175 ms instead of 20)."""


class _Lane:
    """What is believed of one lane. ours, others: requests that it holds; heard: when the newest
    news came (seconds, as in `Candidate`); compute_s: seconds a request, 0.0 for not yet known."""

    __slots__ = ("compute_s", "heard", "others", "ours")

    def __init__(self) -> None:
        self.ours = 0
        self.others = 0.0
        self.heard = -inf
        self.compute_s = 0.0


class Estimates:
    """What is believed of each lane: our own requests exactly, the rest by smoothed gossip.

    Old news are worse than none when followed greedily (Mitzenmacher, "How Useful Is Old
    Information?", 2000). Our own requests are known at once; requests that gossip tells beyond them
    are averaged over many rounds, and so say who is busier and slower in general, not at this
    instant.
    """

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    # --- events ---------------------------------------------------------------------------

    def sent(self, lane: str) -> None:
        """Count a request sent to `lane`."""
        self._lane(lane).ours += 1

    def done(self, lane: str) -> None:
        """Count one answered or given up; a lane not known is ignored."""
        known = self._lanes.get(lane)
        if known is not None and known.ours > 0:
            known.ours -= 1

    def learn(self, candidates: Iterable[Candidate]) -> None:
        """Take in the news of these nodes; news that were taken in before change nothing."""
        for candidate in candidates:
            lane = self._lane(candidate.node)
            if lane.heard == candidate.heard:
                continue
            weight = NEWS_WEIGHT if lane.heard > -inf else 1.0
            others = max(0.0, candidate.load + candidate.in_flight - lane.ours)
            lane.others += (others - lane.others) * weight
            lane.heard = candidate.heard
            if candidate.compute_ewma_s > 0.0:
                known = lane.compute_s > 0.0
                lane.compute_s += (candidate.compute_ewma_s - lane.compute_s) * (
                    weight if known else 1.0
                )

    def retain(self, nodes: Set[str]) -> None:
        """Forget lanes of other nodes where nothing is pending."""
        gone = [name for name, lane in self._lanes.items() if name not in nodes and not lane.ours]
        for name in gone:
            del self._lanes[name]

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane()
        return lane

    # --- questions: of what `learn` took in -------------------------------------------------

    def count(self, lane: str) -> int:
        """Requests of ours pending there."""
        known = self._lanes.get(lane)
        return 0 if known is None else known.ours

    def load(self, lane: str) -> float:
        """Best estimate of the requests that the node holds: queued, running and on their way."""
        known = self._lanes.get(lane)
        return 0.0 if known is None else known.ours + known.others

    def compute_s(self, lane: str) -> float:
        """Smoothed compute time per request in seconds; 0.0 for not yet known."""
        known = self._lanes.get(lane)
        return 0.0 if known is None else known.compute_s

    def stay_s(self, lane: str) -> float:
        """Seconds that the newest request sent there probably stays, behind those before it
        (Little's law); 0.0 for not yet known."""
        return self.load(lane) * self.compute_s(lane)

    def compute_times(self, candidates: Sequence[Candidate]) -> list[float]:
        """`compute_s` of each candidate. A time not yet known counts as the mean of the others (1.0
        where none is known), so that a new node is neither shunned nor flooded."""
        times = [self.compute_s(candidate.node) for candidate in candidates]
        if min(times, default=1.0) <= 0.0:
            known = [time for time in times if time > 0.0]
            mean = sum(known) / len(known) if known else 1.0
            times = [time if time > 0.0 else mean for time in times]
        return times


class Policy(ABC):
    """Chooses a lane for each request. Pure: no clock, no socket; one instance per model and stage.

    A subclass may override the hooks, calling `super()`. Every `sent` is followed by one `done` or
    `unseen` with the same lane, whatever became of the request. Candidates come filtered
    (`RoutingTable`).
    """

    name: ClassVar[str] = ""

    def __init__(self, *, rng: Random | None = None) -> None:
        self.rng = rng if rng is not None else Random()
        self.estimates = Estimates()

    @abstractmethod
    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        """A node id (that node's own lane), "any" (the shared lane), or None to refuse.

        now: seconds, of the clock that `Candidate.heard` is of.
        """

    def sent(self, node: str, request: RequestInfo, now: float) -> None:
        """The request was published on that lane."""
        self.estimates.sent(node)

    def done(self, node: str, request: RequestInfo, now: float, latency_s: float, ok: bool) -> None:
        """The request sent there was answered (`ok`) or failed, `latency_s` seconds after."""
        self.estimates.done(node)

    def unseen(self, node: str, request: RequestInfo) -> None:
        """The request sent there has probably left the node, which its sender does not see: there
        is nothing to learn from it."""
        self.estimates.done(node)

    def take_events(self) -> Sequence[object]:
        """The policy's events since the last call, oldest first; most policies have none."""
        return ()

    def retain(self, nodes: Set[str]) -> None:
        """Forget what is kept for nodes other than these: they left the mesh."""
        self.estimates.retain(nodes)
