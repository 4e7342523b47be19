"""The requester's gate: refuse at once what would fail anyway, and learn from every answer.

Two reasons to refuse. Overload: by Little's law a new request waits for those already inside,
at the pace at which answers come; when that exceeds its budget it is `RESOURCE_EXHAUSTED`
now instead of late. A broken stage: its circuit breaker is open, `UNAVAILABLE` now.
"""

from __future__ import annotations

from typing import NamedTuple

from swarm.errors import ResourceExhausted, Status, Unavailable
from swarm.flow.admission import Admission, Decision
from swarm.flow.breaker import Breaker
from swarm.flow.latency import LatencyWindow
from swarm.flow.silence import Silences
from swarm.wire.messages import Result

BUSY = 4  # requests inside from which the pace of answers tells the capacity
WHOLE = 0  # the breaker of a pipeline whose failing stage is not known
# Queueing is judged by each request's own budget; a standing queue alone is no reason to
# refuse before it is as long as a lane may hold (a quarter of a second).
TARGET, INTERVAL = 0.25, 0.5  # seconds
LEAST_RUNS = 16  # as many as the shortest lane holds, however long they take
MARGIN = 0.6  # of a budget that the predicted time may take: the rest is for jitter
PACE_WEIGHT = 0.02  # of the newest gap
# A control loop cannot wait half a minute for a stage that came back: one probe a second.
OPEN, PROBE = 1.0, 1.0  # seconds
MOST_RETRY_AFTER = 60.0  # seconds


class Pass(NamedTuple):
    """Leave to send; to be handed back with the outcome."""

    decision: Decision
    pace: float  # seconds from one answer to the next, 0.0 while none wait
    started: float
    budget: float


class ModelAdmission:
    """One model version's gate. `now` is `time.monotonic()`; every pass must be handed back."""

    def __init__(self) -> None:
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
        self._admission = Admission(
            margin=MARGIN, target_s=TARGET, interval_s=INTERVAL, least_runs=LEAST_RUNS
        )
        self._breakers: dict[int, Breaker] = {}

    @property
    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self._admission.inside

    @property
    def pace(self) -> float:
        """Seconds from one answer to the next while requests wait; 0.0 before that was seen."""
        return self._pace

    def enter(self, budget: float, now: float) -> Pass:
        """Raises `ResourceExhausted` or `Unavailable`, at once."""
        admission = self._admission
        # The pace of a time that is over says nothing: with few inside, anything is let in.
        pace = self._pace if self._busy and admission.inside >= BUSY else 0.0
        decision = admission.decide(pace, budget, now)
        if not decision.admitted:
            self.shed += 1
            after = min(decision.retry_after_s, MOST_RETRY_AFTER)
            text = f"overload: {decision.reason}; try again in {after:.3f} s"
            raise ResourceExhausted(text, after)
        if self._breakers:
            self._pass_breakers(now)
        return Pass(decision, pace, now, budget)

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

    def leave(self, taken: Pass, result: Result | None, now: float, unusual: bool = False) -> None:
        """A request ended; `result` is None when it was abandoned. unusual: what it took says
        nothing of how long to wait for others."""
        took = now - taken.started
        if result is None:
            self._admission.lost()
            return
        expired = result.status is Status.DEADLINE_EXCEEDED
        if result.status is Status.OK:
            self._time(now)
            if not unusual:
                self.latency.add(took, now)
        if result.status is Status.OK or expired:
            # What came too late took at least twice its budget: else only those that were
            # lucky would be learned from.
            took = 2 * took if expired else took
            self._admission.observe(taken.decision, taken.pace, took, now)
        else:
            self._admission.lost()
        if self._breakers or result.status is not Status.OK:
            self._judge(taken, result, now)
        if result.status is Status.OK:
            self._last_ok = now

    def usual(self, now: float) -> float:
        """The p99 latency in seconds, at most a fifth of a second old: it takes 12 us."""
        if now - self._usual_at > 0.2:
            self._usual = self.latency.percentile(0.99, now, default=0.05)
            self._usual_at = now
        return self._usual

    def _time(self, now: float) -> None:
        """An answer came: while requests wait, the time since the last one is the pace."""
        if self._busy:
            gap = now - self._answered
            if self._pace:
                # The mean, since answers come in bursts; bounded, since one gap during a
                # failover must not look like a slow pipeline.
                gap = min(gap, 4 * self._pace)
                self._pace += PACE_WEIGHT * (gap - self._pace)
            else:
                self._pace = gap
        self._answered = now
        self._busy = self.inside > BUSY

    def _judge(self, taken: Pass, result: Result, now: float) -> None:
        if result.status is Status.OK:
            for breaker in self._breakers.values():
                breaker.record(True, now, taken.started)
            return
        if result.status is Status.DEADLINE_EXCEEDED:
            usual = self.latency.percentile(0.99, now, default=0.5)
            if taken.budget < usual or self._last_ok > taken.started:
                return  # too small a budget, or others were answered: the mesh is not broken
        elif result.status not in (Status.UNAVAILABLE, Status.INTERNAL):
            return
        breaker = self._breakers.setdefault(
            result.stage or WHOLE, Breaker(max_open_s=OPEN, probe_timeout_s=PROBE)
        )
        breaker.record(False, now, taken.started)
