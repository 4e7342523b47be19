"""token-bucket: a node gets requests at the rate at which it has shown to keep its queue short."""

from __future__ import annotations

from collections.abc import Set
from random import Random

from swarm.flow.bucket import TokenBucket
from swarm.routing.base import NEWS_WEIGHT, Policy
from swarm.routing.candidate import ANY, Candidate, Candidates, RequestInfo

_FIRST_SHARE = 0.1  # of a node's capacity, until our real share shows; the rest overflows
_LEAST_SHARE = 0.01  # so that a node that was overrun is found again once it recovers


class TokenBuckets(Policy):
    """One bucket per node; the fullest pays for the request.

    The refill is the node's capacity (weight / compute time), times our share of what it holds,
    corrected at every gossip by how far its queue is from `target`: a longer queue slows it, a
    shorter one speeds it up. Several requesters find their shares by the same feedback.

    target: requests that a node should hold; larger keeps it busier and its latency higher.
    burst: requests sent to one node at once. gain: 0..1, how
    strongly the queue steers; larger follows faster and swings more.
    overflow: "any" sends to the shared lane while no bucket has a token; "refuse" chooses None.
    Raises ValueError for a knob out of its range.
    """

    name = "token-bucket"

    def __init__(
        self,
        *,
        target: float = 2.0,
        burst: float = 4.0,
        gain: float = 0.1,
        overflow: str = "any",
        rng: Random | None = None,
    ) -> None:
        super().__init__(rng=rng)
        if not (target > 0 and burst >= 1 and 0 < gain <= 1 and overflow in ("any", "refuse")):
            raise ValueError('target > 0, burst >= 1, 0 < gain <= 1, overflow "any" or "refuse"')
        self._target = target
        self._burst = burst
        self._gain = gain
        self._spare = ANY if overflow == "any" else None
        self._buckets: dict[str, tuple[TokenBucket, list[float]]] = {}

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        best: TokenBucket | None = None
        node, most = "", 0.0
        for candidate in candidates:
            bucket = self._bucket(candidate, now)
            tokens = bucket.tokens(now)
            if tokens >= 1.0 and tokens > most:
                best, node, most = bucket, candidate.node, tokens
        if best is None:
            return self._spare if candidates else None
        best.take(now)
        return node

    def rate(self, node: str) -> float:
        """Requests a second that the node is given at present; 0.0 for a node never seen."""
        held = self._buckets.get(node)
        return held[0].rate if held else 0.0

    def retain(self, nodes: Set[str]) -> None:
        super().retain(nodes)
        for node in self._buckets.keys() - nodes:
            del self._buckets[node]

    def _bucket(self, candidate: Candidate, now: float) -> TokenBucket:
        held = self._buckets.get(candidate.node)
        self.estimates.learn((candidate,))
        capacity = candidate.weight / (self.estimates.compute_s(candidate.node) or 0.010)
        if held is None:
            # A random phase, so that requesters that start together do not fill one node first.
            bucket = TokenBucket(capacity * _FIRST_SHARE, self._burst)
            bucket.take(now, self.rng.random())
            self._buckets[candidate.node] = (bucket, [candidate.heard, _FIRST_SHARE])
            return bucket
        bucket, state = held
        if state[0] != candidate.heard:
            state[0] = candidate.heard
            told = candidate.load + candidate.in_flight
            ours = self.estimates.count(candidate.node)
            if told + ours > 0:
                state[1] += NEWS_WEIGHT * (min(1.0, ours / max(told, 1.0)) - state[1])
            error = min(1.0, (self._target - told) / self._target)
            rate = capacity * state[1] * (1.0 + self._gain * error)
            bucket.set_rate(max(rate, capacity * _LEAST_SHARE), now)
        return bucket
