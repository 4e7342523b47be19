"""token-bucket: a node gets requests at the rate at which it has shown to keep its queue short."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from random import Random

from swarm.flow.bucket import TokenBucket
from swarm.routing.base import NEWS_WEIGHT, Policy
from swarm.routing.candidate import ANY, Candidate, Candidates, RequestInfo

_FIRST_SHARE = 0.1  # of a node's capacity, until our real share shows; the rest overflows
_LEAST_SHARE = 0.01  # so that a node that was overrun is found again once it recovers


@dataclass(slots=True)
class _Share:
    """A node's bucket. heard: of which news its rate is. share: ours of the node's capacity."""

    bucket: TokenBucket
    heard: float
    share: float = _FIRST_SHARE


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
        self._buckets: dict[str, _Share] = {}

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
        given = self._buckets.get(node)
        return given.bucket.rate if given else 0.0

    def retain(self, nodes: Set[str]) -> None:
        super().retain(nodes)
        for node in self._buckets.keys() - nodes:
            del self._buckets[node]

    def _bucket(self, candidate: Candidate, now: float) -> TokenBucket:
        given = self._buckets.get(candidate.node)
        self.estimates.learn((candidate,))
        capacity = candidate.weight / (self.estimates.compute_s(candidate.node) or 0.010)
        if given is None:
            # A random phase, so that requesters that start together do not fill one node first.
            bucket = TokenBucket(capacity * _FIRST_SHARE, self._burst)
            bucket.take(now, self.rng.random())
            self._buckets[candidate.node] = _Share(bucket, candidate.heard)
            return bucket
        if given.heard != candidate.heard:
            given.heard = candidate.heard
            load = candidate.load + candidate.in_flight
            ours = self.estimates.count(candidate.node)
            if load + ours > 0:
                given.share += NEWS_WEIGHT * (min(1.0, ours / max(load, 1.0)) - given.share)
            error = min(1.0, (self._target - load) / self._target)
            rate = capacity * given.share * (1.0 + self._gain * error)
            given.bucket.set_rate(max(rate, capacity * _LEAST_SHARE), now)
        return given.bucket
