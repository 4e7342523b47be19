"""Overload control: refuse at once what could not be answered in time anyway.

Two rules. The predicted time in the queue must fit the request's budget. And when queueing
stays above a target for a whole interval the queue is *standing*: it adds latency and no
throughput, so that until it drains, requests are admitted only while their predicted queueing is
within the target (CoDel, RFC 8289; for servers: Maurer, "Fail at Scale", ACM Queue 2015). A learned
correction closes the loop where the prediction is wrong (DAGOR, SoCC 2018, measures queueing for
the same reason: response times of later stages mislead).
"""

from math import ceil, inf
from typing import NamedTuple


class Decision(NamedTuple):
    """admitted, or why not; predicted_s: seconds until the answer; retry_after_s: seconds after
    which the same request would be admitted if nothing else came."""

    admitted: bool
    predicted_s: float
    retry_after_s: float = 0.0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


class Admission:
    """Admits or refuses one request at a time, at a gate in front of a pipeline.

    How many of its own requests are inside the pipeline it knows exactly, and at which *pace* they
    leave it: a new one waits for all of them (Little's law). Depths told by gossip are older than
    the queue: by them, the gate would swing between refusing all and admitting all. Every admitted
    request must be followed by one `observe` or `lost`.

    margin: fraction of the budget that the prediction may use, 0..1; smaller refuses earlier and
        forgives jitter.
    target_s: seconds of queueing that may stand; smaller keeps latency lower and may idle a
        bursty lane. At least `least_runs` times the pace counts as target.
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
        self.inside = 0
        """Requests admitted here and not yet ended."""
        self.standing = False
        """Whether queueing has stayed above the target for an interval."""
        self.correction = 1.0
        """Observed over predicted time, smoothed, 0.5 .. 4."""

    def decide(self, pace_s: float, remaining_s: float, now: float) -> Decision:
        """Admit or refuse a request with `remaining_s` seconds of budget, at `now` (seconds).

        pace_s: seconds from one answer to the next while requests wait; 0.0 while none do.
        """
        queueing = self.inside * pace_s * self.correction
        predicted = queueing + pace_s
        over = predicted - remaining_s * self._margin
        if over > 0:
            if pace_s > remaining_s * self._margin:
                return Decision(False, predicted, inf, "the budget is under the service time")
            after = self._left_by(over, pace_s)
            return Decision(False, predicted, after, "the budget would end in the queue")
        if self.standing and now - self._seen_at > self._interval_s:
            self.standing, self._above_since = False, None  # no answers: no evidence of a queue
        if self.standing:
            over = queueing - self._target(pace_s)
            if over > 0:
                self._refused_at = now
                after = self._left_by(over, pace_s)
                return Decision(False, predicted, after, "the queue is standing")
        self.inside += 1
        return Decision(True, predicted)

    def _left_by(self, over: float, pace_s: float) -> float:
        """Seconds until so many have left that queueing is shorter by `over` seconds."""
        return ceil(over / (pace_s * self.correction)) * pace_s

    def lost(self) -> None:
        """An admitted request ended without an answer."""
        self.inside = max(0, self.inside - 1)

    def observe(self, decision: Decision, pace_s: float, took_s: float, now: float) -> None:
        """Learn that a request admitted by `decision` was answered after `took_s` seconds.

        pace_s: what it was admitted by.
        """
        self.lost()
        queueing = max(0.0, took_s - pace_s)
        predicted = decision.predicted_s - pace_s
        target = self._target(pace_s)
        if predicted > 0 and max(queueing, predicted) > target / 2:
            # The prediction already holds the correction: learn what is still missing.
            ratio = min(2.0, max(0.5, queueing / predicted))
            moved = self.correction * (1 + self._weight * (ratio - 1))
            self.correction = min(4.0, max(0.5, moved))
        self._seen_at = now
        if queueing <= target:
            self._above_since = None
            # While it still refuses, the queue is short *because* it refuses.
            self.standing = self.standing and now - self._refused_at < self._interval_s
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= self._interval_s:
            self.standing = True

    def _target(self, pace_s: float) -> float:
        return max(self._target_s, self._least_runs * pace_s)
