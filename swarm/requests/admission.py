"""Whether a request is let in: refuse at once what would fail anyway, and learn from every answer.

Two reasons to refuse. Overload: by Little's law a new request waits for those already inside, at
the pace at which answers come. When the wait exceeds the request's budget, the request is
`RESOURCE_EXHAUSTED` now instead of late. A broken stage: its circuit breaker is open, and the
request is `UNAVAILABLE` now. So it is where no lane takes requests for longer than its budget
(`swarm.requests.outage`): then no stage has failed, and a request with a longer budget may wait.

Overload has two rules (`QueueAdmission`). The predicted time in the queue must fit the request's
budget. And when queueing stays above a target for a whole interval the queue is *standing*: it adds
latency and no throughput, so that until it drains, requests are admitted only while their predicted
queueing is within the target (CoDel, RFC 8289; for servers: Maurer, "Fail at Scale", ACM Queue
2015). A learned correction closes the loop where the prediction is wrong (DAGOR, SoCC 2018,
measures queueing for the same reason: response times of later stages mislead). The time in which
nothing is answered at all is no queueing: a stage is away then, and requests wait for it in its
lane; nor is their backlog, for a while, a standing queue.

A breaker is about the nodes that failed: a node that comes to the stage closes it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import NamedTuple

from swarm.errors import ResourceExhausted, Status, Unavailable
from swarm.flow.latency import LatencyWindow
from swarm.requests.breaker import Breaker, BreakerState
from swarm.requests.outage import Leave, Outage
from swarm.requests.silence import Silences
from swarm.requests.stalls import Stalls
from swarm.wire.messages import Result

# Requests inside from which the pace of answers tells the capacity.
BUSY_FROM = 4
WHOLE_PIPELINE = 0  # the breaker's stage where the failing one is not known
# Seconds. Queueing is judged by each request's own budget; a standing queue alone is no reason to
# refuse before it is as long as a lane may hold (a quarter of a second).
QUEUEING_TARGET, QUEUEING_INTERVAL = 0.25, 0.5
LEAST_RUNS = 16  # as many as the shortest lane holds, however long they take
MARGIN = 0.6  # of a budget that the predicted time may take: the rest is for jitter
PACE_WEIGHT = 0.02  # of the newest gap between answers
# Seconds. A control loop cannot wait half a minute for a stage that came back: one probe a second.
BREAKER_OPEN, BREAKER_PROBE = 1.0, 1.0
MOST_RETRY_AFTER = 60.0  # seconds
USUAL_KEPT_FOR = 0.2  # seconds: a percentile takes 12 us


class Decision(NamedTuple):
    """admitted, or why not; predicted_s: seconds until the answer; retry_after_s: seconds after
    which the same request would be admitted if nothing else came."""

    admitted: bool
    predicted_s: float
    retry_after_s: float = 0.0
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


class QueueAdmission:
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

    def observe(
        self,
        decision: Decision,
        pace_s: float,
        took_s: float,
        now: float,
        catching_up: bool = False,
    ) -> None:
        """Learn that a request admitted by `decision` was answered after `took_s` seconds.

        pace_s: what it was admitted by. catching_up: the queue is the backlog of a stall, which
        goes by itself: it does not count as standing.
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
        if queueing <= target or catching_up:
            self._above_since = None
            # While it still refuses, the queue is short *because* it refuses.
            self.standing = self.standing and now - self._refused_at < self._interval_s
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= self._interval_s:
            self.standing = True

    def _target(self, pace_s: float) -> float:
        return max(self._target_s, self._least_runs * pace_s)


class Pass(NamedTuple):
    """Leave to send; to be handed back with the outcome."""

    decision: Decision
    pace: float  # seconds from one answer to the next, 0.0 while none wait
    started: float
    budget: float
    is_probe: bool = False  # it is sent once only: no lane has taken a request for a while


Present = Callable[[int], frozenset[str]]


def _nobody_known(stage: int) -> frozenset[str]:
    return frozenset()


class ModelAdmission:
    """Lets requests for one model version in. `now` is `time.monotonic()`; every pass must be
    handed back.

    present(stage): the ids of the nodes that are known to serve a stage; of `WHOLE_PIPELINE`: those
    of all stages, none while a stage has nobody.
    """

    def __init__(self, present: Present = _nobody_known) -> None:
        self._present = present
        self.latency = LatencyWindow(window_s=10.0)
        self.silences = Silences()
        self.fast = Silences()  # of fast mode
        self.refused = 0
        self.shed = 0
        self._pace = 0.0  # mean seconds between answers while busy
        self._answered = 0.0
        self._last_ok = 0.0
        self._usual = 0.05
        self._usual_at = 0.0
        self._busy = False
        self._admission = QueueAdmission(
            margin=MARGIN,
            target_s=QUEUEING_TARGET,
            interval_s=QUEUEING_INTERVAL,
            least_runs=LEAST_RUNS,
        )
        self._stalls = Stalls()
        self._outage = Outage()
        self._breakers: dict[int, Breaker] = {}
        # By stage: the nodes that were there when its breaker opened, and have not gone since.
        self._blamed: dict[int, frozenset[str]] = {}

    @property
    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self._admission.inside

    @property
    def pace(self) -> float:
        """Seconds from one answer to the next while requests wait; 0.0 before that was seen."""
        return self._pace

    @property
    def breakers(self) -> dict[int, BreakerState]:
        """The states of the breakers of stages that have failed, by stage; `WHOLE_PIPELINE` where
        the failing one is not known."""
        return {stage: breaker.state for stage, breaker in self._breakers.items()}

    def enter(self, budget: float, now: float) -> Pass:
        """Raises `ResourceExhausted` or `Unavailable`, at once."""
        admission = self._admission
        self._busy = self._busy and admission.inside > 0
        # The pace of a time that is over says nothing: with few inside, anything is let in.
        pace = self._pace if self._busy and admission.inside >= BUSY_FROM else 0.0
        decision = admission.decide(pace, budget, now)
        if not decision.admitted:
            self.shed += 1
            after = min(decision.retry_after_s, MOST_RETRY_AFTER)
            text = f"overload: {decision.reason}; try again in {after:.3f} s"
            raise ResourceExhausted(text, after)
        outage, leave = self._outage, Leave.SEND
        if outage.since is not None:
            leave = outage.ask(budget, now)
        if leave is Leave.REFUSED:
            self.refused += 1
            admission.lost()
            raise Unavailable(
                f"no lane has taken a request for {outage.lasts(now):.1f} s, longer than the "
                "budget: the server, or the link to it, is away"
            )
        if self._breakers:
            self._close_where_nodes_came()
            self._pass_breakers(now)
        return Pass(decision, pace, now, budget, leave is Leave.PROBE)

    def _close_where_nodes_came(self) -> None:
        """Forget the failures of a stage that has a node which was not there when they came."""
        for stage, blamed in list(self._blamed.items()):
            present = self._present(stage)
            self._blamed[stage] = blamed & present
            if present - blamed:
                del self._blamed[stage], self._breakers[stage]

    def _pass_breakers(self, now: float) -> None:
        """Raises `Unavailable` when one is open; the request is not inside then."""
        # Asked first: a request that another stage's breaker refuses must not take this one's
        # probe, which would never be answered.
        blocking = [stage for stage, breaker in self._breakers.items() if breaker.blocks(now)]
        for stage in blocking or self._breakers:
            self._breakers[stage].try_call(now)  # one that blocks only lets a lost probe run out
        if blocking:
            self.refused += 1
            self._admission.lost()
            where = f"stage {blocking[0]}" if blocking[0] else "the pipeline"
            raise Unavailable(f"{where} failed repeatedly; its circuit breaker is open")

    def leave(
        self,
        taken: Pass,
        result: Result | None,
        now: float,
        unusual: bool = False,
        judged: bool = True,
        unheard_at: float | None = None,
    ) -> None:
        """A request ended; `result` is None when it was abandoned. unusual: what it took says
        nothing of how long to wait for others. judged: its failure says something of the stages.
        unheard_at: when it was sent for the last time, where no lane took it."""
        took = now - taken.started
        if result is None:
            self._admission.lost()
            return
        if unheard_at is not None:
            self._outage.unheard(unheard_at)
        elif self._outage.since is not None:
            self._outage.heard()
        expired = result.status is Status.DEADLINE_EXCEEDED
        if result.status is Status.OK:
            stalled = self._stalls.answered(taken.started, now, self._pace, self._busy)
            self._time(now, stalled)
            if not unusual:
                self.latency.add(took, now)
        if result.status is Status.OK or expired:
            took -= self._stalls.during(taken.started, now, self._pace)
            # What came too late took at least twice its budget: else only those that were
            # lucky would be learned from.
            took = 2 * took if expired else took
            catching_up = self._stalls.is_catching_up(now)
            self._admission.observe(taken.decision, taken.pace, took, now, catching_up)
        else:
            self._admission.lost()
        if judged and unheard_at is None and (self._breakers or result.status is not Status.OK):
            self._judge(taken, result, now)
        if result.status is Status.OK:
            self._last_ok = now

    def usual(self, now: float) -> float:
        """The p99 latency in seconds, at most `USUAL_KEPT_FOR` old."""
        if now - self._usual_at > USUAL_KEPT_FOR:
            self._usual = self.latency.percentile(0.99, now, default=0.05)
            self._usual_at = now
        return self._usual

    def _time(self, now: float, stalled: bool) -> None:
        """An answer came: while requests wait, the time since the last one is the pace, unless
        nobody worked on them."""
        if self._busy and not stalled:
            gap = now - self._answered
            if self._pace:
                # The mean, since answers come in bursts; bounded, since one gap during a
                # failover must not look like a slow pipeline.
                gap = min(gap, 4 * self._pace)
                self._pace += PACE_WEIGHT * (gap - self._pace)
            else:
                self._pace = gap
        self._answered = now
        self._busy = self.inside > BUSY_FROM

    def _judge(self, taken: Pass, result: Result, now: float) -> None:
        if result.status is Status.OK:
            for stage, breaker in self._breakers.items():
                breaker.record(True, now, taken.started)
                if breaker.state is BreakerState.CLOSED:
                    self._blamed.pop(stage, None)
            return
        if result.status is Status.DEADLINE_EXCEEDED:
            usual = self.latency.percentile(0.99, now, default=0.5)
            if taken.budget < usual or self._last_ok > taken.started:
                return  # too small a budget, or others were answered: the mesh is not broken
        elif result.status not in (Status.UNAVAILABLE, Status.INTERNAL):
            return
        stage = result.stage or WHOLE_PIPELINE
        breaker = self._breakers.setdefault(
            stage, Breaker(max_open_s=BREAKER_OPEN, probe_timeout_s=BREAKER_PROBE)
        )
        was_closed = breaker.state is BreakerState.CLOSED
        breaker.record(False, now, taken.started)
        if was_closed and breaker.state is BreakerState.OPEN:
            self._blamed[stage] = self._present(stage)
