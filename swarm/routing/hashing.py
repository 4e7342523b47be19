"""consistent-hash: the same session to the same node, unless that node has too much to do."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

from swarm.routing.base import Policy
from swarm.routing.candidate import Candidate, RequestInfo
from swarm.routing.rendezvous import hash64, mix, score


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

    def choose(
        self, candidates: Sequence[Candidate], request: RequestInfo, now: float
    ) -> str | None:
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


def home(key: int, candidates: Sequence[Candidate]) -> int:
    """Index of the candidate that owns a key (`hash64`): the first in its rendezvous order."""
    weight = candidates[0].weight
    best, most = 0, -1.0
    for index, candidate in enumerate(candidates):
        if candidate.weight != weight:
            break
        mixed = mix(key, hash64(candidate.node))
        if mixed > most:
            best, most = index, mixed
    else:  # equal weights, the usual case: the order of the hashes is the order of the scores
        return best
    scores = [score(key, hash64(each.node), each.weight) for each in candidates]
    return max(range(len(scores)), key=scores.__getitem__)
