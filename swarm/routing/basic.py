"""The classic policies: pull, round-robin, least-connections, power-of-two and the weighted one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from swarm.routing.base import Policy
from swarm.routing.candidate import ANY, Candidate, RequestInfo


class Pull(Policy):
    """The stage's shared lane: whoever has room takes the next request (work-conserving).

    It needs no load information, so none can be stale; nodes that drain or die stop pulling.
    blind: True chooses the shared lane even where gossip knows no candidate: the lane then keeps
    the request until its budget ends, instead of refusing it at once.
    """

    name = "pull"

    def __init__(self, *, blind: bool = False, rng: Random | None = None) -> None:
        super().__init__(rng=rng)
        self.blind = blind

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        return ANY if candidates or self.blind else None


class RoundRobin(Policy):
    """Each node in turn, from a random start, so that requesters do not march in step."""

    name = "round-robin"

    def __init__(self, *, rng: Random | None = None) -> None:
        super().__init__(rng=rng)
        self._turn = self.rng.randrange(1 << 16)

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)].node


class LeastConnections(Policy):
    """The node with the fewest of *our own* requests pending, per weight; ties at random.

    Needs no gossip, and sees nothing of other requesters.
    """

    name = "least-connections"

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        count = self.estimates.count
        best, best_score, ties = None, inf, 1
        for candidate in candidates:
            score = count(candidate.node) / candidate.weight
            if score < best_score:
                best, best_score, ties = candidate.node, score, 1
            elif score == best_score:
                ties += 1
                if self.rng.random() * ties < 1.0:
                    best = candidate.node
        return best


class PowerOfTwo(Policy):
    """The less loaded of two nodes at random (Mitzenmacher, "The Power of Two Choices", 2001).

    Constant time whatever the fleet's size, and no herd towards the node that looked idle.
    """

    name = "power-of-two"

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        size = len(candidates)
        if size < 2:
            return candidates[0].node if size else None
        random = self.rng.random
        first = int(random() * size)
        second = (first + 1 + int(random() * (size - 1))) % size
        one, other = candidates[first], candidates[second]
        self.estimates.learn((one, other))
        load = self.estimates.load
        less = (load(one.node) + 1.0) / one.weight <= (load(other.node) + 1.0) / other.weight
        return one.node if less else other.node


class WeightedLeastPending(Policy):
    """The node expected to finish first: (requests it holds + 1) * compute time / weight.

    Requests held: as gossip tells, corrected by those of ours since; compute time: its EWMA.
    """

    name = "weighted-least-pending"

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
        self.estimates.learn(candidates)
        load = self.estimates.load
        best, best_score, ties = None, inf, 1
        for candidate, time_s in zip(
            candidates, self.estimates.compute_times(candidates), strict=True
        ):
            score = (load(candidate.node) + 1.0) * time_s / candidate.weight
            if score < best_score:
                best, best_score, ties = candidate.node, score, 1
            elif score == best_score:
                ties += 1
                if self.rng.random() * ties < 1.0:
                    best = candidate.node
        return best
