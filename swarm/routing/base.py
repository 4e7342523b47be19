"""The interface of a routing policy, and the counts that all of them keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from math import inf
from random import Random
from typing import ClassVar

from swarm.routing.candidate import Candidate, RequestInfo

NEWS_WEIGHT = 0.1
"""Of the newest gossip in what is believed of others' requests: at a round of 100 ms this averages
over a second. Taken as told (1.0), news that are 100 ms old make every requester run to the node
that looked idle (simulated: p99 of 8 nodes at 75 % load 175 ms instead of 20)."""


class Estimates:
    """What is believed of each lane: our own requests exactly, the rest by smoothed gossip.

    Old news are worse than none when followed greedily (Mitzenmacher, "How Useful Is Old
    Information?", 2000). Our own requests are known at once; what is told beyond them is averaged
    over many rounds, and so says who is busier and slower in general, not at this instant.
    """

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[str, list[float]] = {}  # [ours, others', heard, compute_s]

    def sent(self, lane: str) -> None:
        """Count a request sent to `lane`."""
        entry = self._lanes.get(lane)
        if entry is None:
            entry = self._lanes[lane] = [0.0, 0.0, -inf, 0.0]
        entry[0] += 1

    def done(self, lane: str) -> None:
        """Count one answered or given up; a lane not known is ignored."""
        entry = self._lanes.get(lane)
        if entry is not None and entry[0] > 0:
            entry[0] -= 1

    def count(self, lane: str) -> float:
        """Requests of ours pending there."""
        entry = self._lanes.get(lane)
        return 0.0 if entry is None else entry[0]

    def load(self, candidate: Candidate) -> float:
        """Best estimate of the requests that the node holds: queued, running and on their way."""
        entry = self._heard(candidate)
        return entry[0] + entry[1]

    def compute_s(self, candidate: Candidate) -> float:
        """Smoothed compute time per request in seconds; 0.0 for not yet known."""
        return self._heard(candidate)[3]

    def compute_times(self, candidates: Sequence[Candidate]) -> list[float]:
        """The same for all; those not yet known count as the mean of the others (1.0 where none
        is known), so that a new node is neither shunned nor flooded."""
        times = [self._heard(candidate)[3] for candidate in candidates]
        if min(times, default=1.0) <= 0.0:
            known = [time for time in times if time > 0.0]
            mean = sum(known) / len(known) if known else 1.0
            times = [time if time > 0.0 else mean for time in times]
        return times

    def _heard(self, candidate: Candidate) -> list[float]:
        entry = self._lanes.get(candidate.node)
        if entry is None:
            entry = self._lanes[candidate.node] = [0.0, 0.0, -inf, 0.0]
        if entry[2] != candidate.heard:
            weight = NEWS_WEIGHT if entry[2] > -inf else 1.0
            others = max(0.0, candidate.load + candidate.in_flight - entry[0])
            entry[1] += (others - entry[1]) * weight
            entry[2] = candidate.heard
            if candidate.compute_ewma_s > 0.0:
                known = entry[3] > 0.0
                entry[3] += (candidate.compute_ewma_s - entry[3]) * (weight if known else 1.0)
        return entry

    def retain(self, nodes: Set[str]) -> None:
        """Forget lanes of other nodes where nothing is pending."""
        gone = [lane for lane, entry in self._lanes.items() if lane not in nodes and not entry[0]]
        for lane in gone:
            del self._lanes[lane]


class Policy(ABC):
    """Chooses a lane for each request. Pure: no clock, no socket; one instance per model and stage.

    A subclass may override the hooks, calling `super()`. Every `sent` is followed by one `done`
    with the same lane, whatever became of the request. Candidates come filtered (`RoutingTable`).
    """

    name: ClassVar[str] = ""

    def __init__(self, *, rng: Random | None = None) -> None:
        self.rng = rng if rng is not None else Random()
        self.estimates = Estimates()

    @abstractmethod
    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        """A node id (that node's own lane), "any" (the shared lane), or None to refuse.

        now: seconds, of the clock that `Candidate.heard` is of.
        """

    def sent(self, node: str, request: RequestInfo, now: float) -> None:
        """The request was published on that lane."""
        self.estimates.sent(node)

    def done(self, node: str, request: RequestInfo, now: float, latency_s: float, ok: bool) -> None:
        """The request sent there was answered (`ok`) or failed, `latency_s` seconds after."""
        self.estimates.done(node)

    def take_events(self) -> Sequence[object]:
        """What the policy has to say since the last call, oldest first; most say nothing."""
        return ()

    def retain(self, nodes: Set[str]) -> None:
        """Forget what is kept for nodes other than these: they left the mesh."""
        self.estimates.retain(nodes)
