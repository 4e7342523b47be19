"""Overload control: refuse at once what could not be answered in time anyway.

Two rules. The predicted time through the pipeline must fit the request's budget. And when queueing
stays above a target for a whole interval the queue is *standing*: it adds latency and no
throughput, so that until it drains, requests are admitted only while their predicted queueing is
within the target (CoDel, RFC 8289; for servers: Maurer, "Fail at Scale", ACM Queue 2015). A learned
correction closes the loop where the prediction is wrong (DAGOR, SoCC 2018, measures queueing for
the same reason: response times of later stages mislead).
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

_AVERAGED_S = 1.0
"""Seconds over which the requests of other gates are averaged: some ten rounds of gossip."""


class StageLoad(NamedTuple):
    """One stage as gossip tells it: requests queued and running, seconds per request of one server
    (p50), and servers in service."""

    depth: float
    service_s: float
    servers: float = 1.0


class Decision(NamedTuple):
    """admitted, or why not; predicted_s: seconds until the answer; retry_after_s: seconds after
    which the same request would be admitted if nothing else came."""

    admitted: bool
    predicted_s: float
    retry_after_s: float = 0.0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


def predict_s(stages: Sequence[StageLoad]) -> tuple[float, float]:
    """(queueing, service) in seconds for a request that enters a pipeline of `stages` now.

    Fluid model: whatever is in stages 1..k must pass stage k before it, so that stage delays it by
    depth(1..k) * service / servers, less the service it has itself had by then; the worst stage
    counts. inf where a stage has no server.
    """
    ahead = service = queueing = 0.0
    for stage in stages:
        if stage.servers <= 0:
            return inf, service
        ahead += max(0.0, stage.depth)
        drained = ahead * stage.service_s / stage.servers
        queueing = max(queueing, drained - service)
        service += stage.service_s
    return queueing, service


class Admission:
    """Admits or refuses one request at a time, at a gate in front of a pipeline.

    Depths told by gossip are old: followed to the letter, the gate would swing between refusing
    all and admitting all. How many of its own requests are inside it knows exactly, so it takes
    that number, plus the average of what is told beyond it (the other gates' requests), and from
    gossip only how they spread over the stages. Every admitted request must therefore be followed
    by one `observe` or `lost`.

    margin: fraction of the budget that the prediction may use, 0..1; smaller refuses earlier and
        forgives jitter.
    target_s: seconds of queueing that may stand; smaller keeps latency lower and may idle a
        bursty lane. At least `least_runs` runs of the slowest stage count as target.
    interval_s: seconds above the target after which the queue counts as standing.
    weight: of the newest observation in the correction, 0..1.
    Raises ValueError for a knob out of its range.
    """

    def __init__(
        self,
        *,
        margin: float = 0.9,
        target_s: float = 0.020,
        interval_s: float = 0.100,
        weight: float = 0.05,
        least_runs: float = 2.0,
    ) -> None:
        if not (0 < margin <= 1 and target_s > 0 and interval_s > 0 and 0 < weight <= 1):
            raise ValueError("0 < margin <= 1, target_s > 0, interval_s > 0, 0 < weight <= 1")
        if not least_runs > 0:
            raise ValueError(f"least_runs > 0: {least_runs}")
        self._least_runs = least_runs
        self._margin = margin
        self._target_s = target_s
        self._interval_s = interval_s
        self._weight = weight
        self._above_since: float | None = None
        self._seen_at = 0.0
        self._refused_at = -inf
        self._others = 0.0
        self._others_at: float | None = None
        self.inside = 0
        """Requests admitted here and not yet ended."""
        self.standing = False
        """Whether queueing has stayed above the target for an interval."""
        self.correction = 1.0
        """Observed over predicted time, smoothed, 0.5 .. 4."""

    def decide(self, stages: Sequence[StageLoad], remaining_s: float, now: float) -> Decision:
        """Admit or refuse a request with `remaining_s` seconds of budget, at `now` (seconds)."""
        queueing, service = predict_s(self._estimate(stages, now))
        if queueing == inf:
            return Decision(False, inf, self._interval_s, "a stage has no server")
        queueing *= self.correction
        predicted = queueing + service
        over = predicted - remaining_s * self._margin
        if over > 0:
            if service > remaining_s * self._margin:
                return Decision(False, predicted, inf, "the budget is under the service time")
            return Decision(False, predicted, over, "the budget would end in the queue")
        if self.standing and now - self._seen_at > self._interval_s:
            self.standing, self._above_since = False, None  # no answers: no evidence of a queue
        if self.standing:
            over = queueing - self._target(stages)
            if over > 0:
                self._refused_at = now
                return Decision(False, predicted, over, "the queue is standing")
        self.inside += 1
        return Decision(True, predicted)

    def lost(self) -> None:
        """An admitted request ended without an answer."""
        self.inside = max(0, self.inside - 1)

    def observe(
        self, decision: Decision, stages: Sequence[StageLoad], took_s: float, now: float
    ) -> None:
        """Learn that a request admitted by `decision` was answered after `took_s` seconds.

        stages: the load at present or when it was admitted; only service times are read.
        """
        self.lost()
        service = sum(stage.service_s for stage in stages)
        queueing = max(0.0, took_s - service)
        predicted = max(0.0, decision.predicted_s - service)
        if predicted > 0 and max(queueing, predicted) > self._target(stages) / 2:
            # The prediction already holds the correction: learn what is still missing.
            ratio = min(2.0, max(0.5, queueing / predicted))
            moved = self.correction * (1 + self._weight * (ratio - 1))
            self.correction = min(4.0, max(0.5, moved))
        self._seen_at = now
        if queueing <= self._target(stages):
            self._above_since = None
            # While it still refuses, the queue is short *because* it refuses.
            self.standing = self.standing and now - self._refused_at < self._interval_s
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= self._interval_s:
            self.standing = True

    def _estimate(self, stages: Sequence[StageLoad], now: float) -> list[StageLoad]:
        told = sum(max(0.0, stage.depth) for stage in stages)
        if self._others_at is None:
            self._others = told - self.inside
        else:
            weight = min(1.0, max(0.0, now - self._others_at) / _AVERAGED_S)
            self._others += weight * (told - self.inside - self._others)
        self._others_at = now
        total = self.inside + max(0.0, self._others)
        if told <= 0:  # nobody told where they are: at the slowest stage, then
            slowest = max(stages, key=lambda s: s.service_s / max(s.servers, 1e-9), default=None)
            return [s._replace(depth=total) if s is slowest else s for s in stages]
        share = total / told
        return [StageLoad(max(0.0, s.depth) * share, s.service_s, s.servers) for s in stages]

    def _target(self, stages: Sequence[StageLoad]) -> float:
        slowest = max((s.service_s / max(s.servers, 1.0) for s in stages), default=0.0)
        return max(self._target_s, self._least_runs * slowest)
