"""The classic policies: pull, round-robin, least-connections, power-of-two, the weighted one, and
consistent hashing."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

from swarm.routing.base import Policy
from swarm.routing.candidate import ANY, Candidate, Candidates, RequestInfo
from swarm.routing.rendezvous import hash64, home, score


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

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        return ANY if candidates or self.blind else None


class RoundRobin(Policy):
    """Each node in turn, from a random start, so that requesters do not march in step."""

    name = "round-robin"

    def __init__(self, *, rng: Random | None = None) -> None:
        super().__init__(rng=rng)
        self._turn = self.rng.randrange(1 << 16)

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)].node


class LeastConnections(Policy):
    """The node with the fewest of *our own* requests pending, per weight; ties at random.

    Needs no gossip, and sees nothing of other requesters.
    """

    name = "least-connections"

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        count = self.estimates.count
        costs = [count(candidate.node) / candidate.weight for candidate in candidates]
        return _cheapest(candidates, costs, self.rng)


class PowerOfTwo(Policy):
    """The less loaded of two nodes at random (Mitzenmacher, "The Power of Two Choices", 2001).

    Constant time whatever the fleet's size, and no herd towards the node that looked idle.
    """

    name = "power-of-two"

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
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

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        self.estimates.learn(candidates)
        load = self.estimates.load
        times = self.estimates.compute_times(candidates)
        costs = [
            (load(candidate.node) + 1.0) * time_s / candidate.weight
            for candidate, time_s in zip(candidates, times, strict=True)
        ]
        return _cheapest(candidates, costs, self.rng)


class ConsistentHash(Policy):
    """Rendezvous hashing by session, or else by agent, with bounded loads (Mirrokni, Thorup,
    Zadimoghaddam, "Consistent Hashing with Bounded Loads", arXiv 1608.01350).

    No node gets a request while it holds `balance` times its fair share of all requests held; the
    next in the key's order does. A request without session and agent is hashed by its own id.

    balance: > 1; near 1 spreads the load evenly, larger keeps sessions where they are warm.
    Raises ValueError for balance <= 1.
    """

    name = "consistent-hash"

    def __init__(self, *, balance: float = 1.25, rng: Random | None = None) -> None:
        super().__init__(rng=rng)
        if not balance > 1:
            raise ValueError(f"balance > 1: {balance}")
        self.balance = balance

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        if not candidates:
            return None
        key = hash64(request.session or request.agent or request.id)
        self.estimates.learn(candidates)
        loads = [self.estimates.load(candidate.node) for candidate in candidates]
        owner = home(key, candidates)
        weights = sum(candidate.weight for candidate in candidates)
        bound = self.balance * (sum(loads) + 1.0) / weights
        if loads[owner] + 1.0 <= ceil(bound * candidates[owner].weight):
            return candidates[owner].node
        scores = [score(key, hash64(each.node), each.weight) for each in candidates]
        for index in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
            if loads[index] + 1.0 <= ceil(bound * candidates[index].weight):
                return candidates[index].node
        return candidates[owner].node  # only rounding can leave no node under its bound


def _cheapest(candidates: Sequence[Candidate], costs: list[float], rng: Random) -> str | None:
    """The node of the least cost; ties at random."""
    if not candidates:
        return None
    least = min(costs)
    first = costs.index(least)
    if costs.count(least) == 1:
        return candidates[first].node
    ties = [index for index, cost in enumerate(costs) if cost == least]
    return candidates[ties[int(rng.random() * len(ties))]].node
