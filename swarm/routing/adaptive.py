"""adaptive: learns online which node answers soonest, and yields when it does harm.

A contextual bandit with one linear model per node over the features of (node, request), trained on
the observed latency by normalised least mean squares (Haykin, "Adaptive Filter Theory", ch. 6) and
explored by epsilon-greedy, where exploring means power-of-two: a safe second opinion instead of a
random node. Its prior is weighted-least-pending: it starts from a good rule and learns the rest,
which that rule does not see: warm caches, slow links, nodes whose queues lie.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Set
from dataclasses import dataclass
from math import inf
from random import Random

from swarm.flow.backoff import Backoff
from swarm.flow.latency import LatencyWindow
from swarm.routing.base import Policy
from swarm.routing.basic import PowerOfTwo, WeightedLeastPending
from swarm.routing.candidate import Candidates, RequestInfo
from swarm.routing.rendezvous import hash64
from swarm.routing.rendezvous import home as home_of

_MIN_SAMPLES = 50  # a p99 of fewer is the maximum
_CHECK_EVERY_S = 0.1
_RECOVERED = 0.8  # of the bound: hysteresis, so that the policy does not flap at the bound
_LONGEST_HOLD_S = 60.0
_PRIOR = (1.0, 1.0, 1.0, 0.0)  # a session away from home is expected to cost one run more
Features = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class SafetyEvent:
    """The adaptive policy yielded to weighted-least-pending, or returned, at `now` (seconds)."""

    kind: str
    """"yielded" or "returned"."""
    now: float
    p99_s: float
    bound_s: float
    hold_s: float
    """Seconds for which it stays away at least."""


class Adaptive(Policy):
    """Sends to the node with the lowest predicted latency; features: work ahead (requests held *
    compute time), compute time, compute time if another node is the session's home (by rendezvous
    hashing, so that all requesters agree), and transfer (feature bytes). A node's device and link
    show in its own weights. Where no latency is seen (a stage that feeds the next one) it stays
    weighted-least-pending.

    Safety: when the p99 of the last `window_s` seconds exceeds `p99_bound_s` it yields to
    weighted-least-pending, goes on learning from its choices, and says so (`yielded`,
    `take_events`). It returns once `hold_s` has passed and the p99 is under 0.8 of the bound. The
    hold doubles, up to 60 s, each time it yields again within ten holds of returning.

    p99_bound_s: seconds; use the budget of the requests. epsilon: 0..1, fraction explored.
    rate: 0..1, step of learning; larger follows changes faster and is noisier.
    Raises ValueError for a knob out of its range.
    """

    name = "adaptive"

    def __init__(
        self,
        *,
        p99_bound_s: float = 0.100,
        epsilon: float = 0.02,
        rate: float = 0.05,
        window_s: float = 5.0,
        hold_s: float = 5.0,
        rng: Random | None = None,
    ) -> None:
        super().__init__(rng=rng)
        if not (p99_bound_s > 0 and 0 <= epsilon <= 1 and 0 < rate <= 1 and hold_s > 0):
            raise ValueError("p99_bound_s > 0, 0 <= epsilon <= 1, 0 < rate <= 1, hold_s > 0")
        self.yielded = False
        """Whether weighted-least-pending decides at present."""
        self._bound_s = p99_bound_s
        self._epsilon = epsilon
        self._rate = rate
        self._latency = LatencyWindow(window_s, relative_error=0.05)
        self._holds = Backoff(hold_s, max(hold_s, _LONGEST_HOLD_S))
        self._hold_s = hold_s
        self._changed_at = -inf
        self._checked_at = -inf
        self._events: deque[SafetyEvent] = deque(maxlen=64)
        self._weights: dict[str, list[float]] = {}
        self._open: OrderedDict[str, tuple[str, Features]] = OrderedDict()
        self._chosen: tuple[str, str, Features] | None = None
        self._fallback = WeightedLeastPending(rng=self.rng)
        self._explorer = PowerOfTwo(rng=self.rng)
        self._fallback.estimates = self._explorer.estimates = self.estimates  # one belief for all

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        if not candidates:
            return None
        other: str | None = None
        if self.yielded:
            other = self._fallback.choose(candidates, request, now)
        elif self.rng.random() < self._epsilon:
            other = self._explorer.choose(candidates, request, now)
        home = None
        if request.session:
            home = candidates[home_of(hash64(request.session), candidates)].node
        transfer = request.features_bytes * 1e-9
        best, best_score = None, inf
        chosen: Features = (0.0, 0.0, 0.0, 0.0)
        self.estimates.learn(candidates)
        load = self.estimates.load
        for candidate, time_s in zip(
            candidates, self.estimates.compute_times(candidates), strict=True
        ):
            node = candidate.node
            if other is not None and node != other:
                continue
            time_s /= candidate.weight
            cold = time_s if home is not None and home != node else 0.0
            features = (load(node) * time_s, time_s, cold, transfer)
            weights = self._weights.get(node)
            if weights is None:
                weights = self._weights[node] = list(_PRIOR)
            predicted = (
                weights[0] * features[0]
                + weights[1] * time_s
                + weights[2] * cold
                + weights[3] * transfer
            )
            if predicted < best_score:
                best, best_score, chosen = node, predicted, features
        if best is not None:
            self._chosen = (request.id, best, chosen)
        return best

    def sent(self, node: str, request: RequestInfo, now: float) -> None:
        super().sent(node, request, now)
        if self._chosen is not None and self._chosen[:2] == (request.id, node):
            self._open[request.id] = (node, self._chosen[2])
            if len(self._open) > 8192:
                self._open.popitem(last=False)

    def done(self, node: str, request: RequestInfo, now: float, latency_s: float, ok: bool) -> None:
        super().done(node, request, now, latency_s, ok)
        if not ok:  # a failure is at least as bad as an answer at the end of the budget
            latency_s = max(latency_s, request.remaining_s)
        self._latency.add(latency_s, now)
        opened = self._open.pop(request.id, None)
        if opened is not None and opened[0] == node:
            self._learn(node, opened[1], latency_s)
        if now - self._checked_at >= _CHECK_EVERY_S:
            self._checked_at = now
            self._check(now)

    def unseen(self, node: str, request: RequestInfo) -> None:
        super().unseen(node, request)
        self._open.pop(request.id, None)

    def take_events(self) -> list[SafetyEvent]:
        """The changes since the last call, oldest first (at most the latest 64)."""
        events = list(self._events)
        self._events.clear()
        return events

    def retain(self, nodes: Set[str]) -> None:
        super().retain(nodes)
        for node in self._weights.keys() - nodes:
            del self._weights[node]

    def _learn(self, node: str, features: Features, latency_s: float) -> None:
        weights = self._weights.get(node)
        if weights is None:
            return
        power = predicted = 0.0
        for weight, feature in zip(weights, features, strict=True):
            power += feature * feature
            predicted += weight * feature
        if power > 0.0:
            step = self._rate * (latency_s - predicted) / power
            for index, feature in enumerate(features):
                weights[index] += step * feature
            weights[0] = max(0.1, weights[0])  # more work ahead is never good news

    def _check(self, now: float) -> None:
        p99 = self._latency.percentile(0.99, now)
        if not self.yielded:
            if self._latency.count < _MIN_SAMPLES or p99 <= self._bound_s:
                return
            if now - self._changed_at >= 10 * self._hold_s:  # no relapse
                self._holds.reset()
            self._hold_s = self._holds.next()
            self._turn(True, now, p99)
        elif now - self._changed_at >= self._hold_s and p99 <= _RECOVERED * self._bound_s:
            self._turn(False, now, p99)

    def _turn(self, yielded: bool, now: float, p99_s: float) -> None:
        self.yielded = yielded
        self._changed_at = now
        kind = "yielded" if yielded else "returned"
        self._events.append(SafetyEvent(kind, now, p99_s, self._bound_s, self._hold_s))
