"""Whether a request is let in: refuse at once what would fail anyway, and learn from every answer.

Three reasons to refuse.

Overload: by Little's law a new request waits for those already inside, at the interval at which
answers come. When the wait exceeds the request's budget, the request is `RESOURCE_EXHAUSTED` now
instead of late. And when queueing stays above a target for a whole interval the queue is
*standing*: it adds latency and no throughput, so that until it drains, requests are admitted only
while their predicted queueing is within the target (CoDel, RFC 8289; for servers: Maurer, "Fail at
Scale", ACM Queue 2015). A learned correction closes the loop where the prediction is wrong (DAGOR,
SoCC 2018, measures queueing for the same reason: response times of later stages mislead). A time in
which nothing is answered at all is a *stall*, and no queueing: a stage is away then, and requests
wait for it in its lane; nor is their backlog, for a while, a standing queue.

A broken stage: its circuit breaker is open, and the request is `UNAVAILABLE` now. A breaker counts
failures of the nodes that were there: a new node of the stage closes it.

An outage: no lane takes a request, since the server or the link to it is away. It may end at any
moment, so a request waits for its end. A request whose budget would probably end first is
`UNAVAILABLE` now. An outage is expected to last as long again as it has lasted, which is the usual
guess for a duration without a known scale.

A request of another urgency than those inside waits for fewer, or for more, of them: as many as its
class's share of the turns lets pass (`swarm.flow.shares`), and never more than there are.

`ENTER` is the table by which a request is let in; the page shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from math import ceil, inf
from typing import NamedTuple

from swarm.errors import ResourceExhausted, Status, Unavailable
from swarm.flow.latency import LatencyWindow
from swarm.flow.rules import DecisionRule, decide
from swarm.requests.breaker import Breaker, BreakerState
from swarm.requests.silence import Silences
from swarm.wire.messages import Result
from swarm.wire.urgency import NORMAL, WEIGHTS

WHOLE_PIPELINE = 0  # the breaker's stage where the failing one is not known


# When requests are refused. All times are seconds.

# Fraction of a budget that the predicted time may take: the rest is for jitter. Smaller refuses
# earlier.
MARGIN = 0.6
# Queueing that may stand: as long as a lane may hold, since each request's own budget judges its
# queueing. Smaller keeps latency lower and may idle a bursty lane.
TARGET = 0.25
# So many answer intervals may stand, however long they take: as many as the shortest lane holds.
TARGET_RUNS = 16.0
INTERVAL = 0.5  # time above the target after which the queue counts as standing
CORRECTION_WEIGHT = 0.05  # of the newest observation in the correction of predictions
# Requests inside from which the interval between answers tells the capacity.
BUSY_FROM = 4
ANSWER_WEIGHT = 0.02  # of the newest interval between answers in their mean
# Time without an answer, while requests wait, from which it was a stall; it lasts at least so many
# times the usual interval between answers, too.
STALL, STALL_INTERVALS = 0.1, 4.0
STALLS = 16  # stalls remembered
# Times its length, after a stall, in which its backlog may still be there. A pipeline that is busy
# for four fifths of its time, and takes new requests as well, needs four times as long.
CATCH_UP = 4.0
# Time between two requests that are let through during an outage, to see whether it lasts.
PROBE_EVERY = 0.25
LONGEST_REASON = 300  # characters of the last failure that an open breaker names
RETRY_AFTER = 60.0  # longest time after which a refused request is told to come back
USUAL_FOR = 0.2  # time for which a computed percentile is used again: it takes 12 us


class Decision(NamedTuple):
    """admitted, or why not; predicted: seconds until the answer; retry_after: seconds after which
    the same request would be admitted if nothing else came. urgency: of the request. passes:
    whether it goes before others that wait, so that its time tells nothing of theirs."""

    admitted: bool
    predicted: float
    retry_after: float = 0.0
    reason: str = ""
    urgency: int = NORMAL
    passes: bool = False


class QueueAdmission:
    """Admits or refuses one request at a time, at a gate in front of a pipeline.

    How many of its own requests are inside the pipeline it knows exactly, and at which interval
    they leave it: a new one waits for all of them (Little's law). Depths that gossip brings are
    older than the queue: by them, the gate would swing between refusing all and admitting all.
    Every admitted request must be followed by one `observe` or `lost`.
    """

    def __init__(self) -> None:
        self._above_since: float | None = None
        self._seen_at = 0.0
        self._refused_at = -inf
        self.inside = 0
        """Requests admitted here and not yet ended."""
        self.standing = False
        """Whether queueing has stayed above the target for an interval."""
        self.correction = 1.0
        """Observed over predicted time, smoothed, 0.5 .. 4."""
        self._others: dict[int, int] = {}  # of `inside` those that are not normal, by urgency

    def decide(
        self, answer_interval: float, budget: float, now: float, urgency: int = NORMAL
    ) -> Decision:
        """Admit or refuse a request with `budget` seconds left, at `now` (seconds).

        answer_interval: seconds from one answer to the next while requests wait; 0.0 while none do.
        """
        before = self._before(urgency) if urgency or self._others else self.inside
        queueing = before * answer_interval * self.correction
        predicted = queueing + answer_interval
        usable = budget * MARGIN
        if predicted > usable:
            if answer_interval > usable:
                return Decision(False, predicted, inf, "the budget is under the service time")
            after = self._drained_after(predicted - usable, answer_interval)
            return Decision(False, predicted, after, "the budget would end in the queue")
        if self.standing and now - self._seen_at > INTERVAL:
            self.standing, self._above_since = False, None  # no answers: no evidence of a queue
        if self.standing:
            over = queueing - self._target(answer_interval)
            if over > 0:
                self._refused_at = now
                after = self._drained_after(over, answer_interval)
                return Decision(False, predicted, after, "the queue is standing")
        passes = before < self.inside
        self.inside += 1
        if urgency:
            self._others[urgency] = self._others.get(urgency, 0) + 1
        return Decision(True, predicted, urgency=urgency, passes=passes)

    def _before(self, urgency: int) -> float:
        """Of those inside, how many have their turns before a request of this urgency."""
        own, weight = self._of(urgency), WEIGHTS[urgency]
        others = sum(each for of, each in WEIGHTS.items() if of != urgency and self._of(of))
        return min(self.inside, (own * (weight + others) + others) / weight)

    def _of(self, urgency: int) -> int:
        if urgency == NORMAL:
            return self.inside - sum(self._others.values())
        return self._others.get(urgency, 0)

    def _drained_after(self, over: float, answer_interval: float) -> float:
        """Seconds until so many have been answered that queueing is shorter by `over` seconds."""
        return ceil(over / (answer_interval * self.correction)) * answer_interval

    def lost(self, urgency: int = NORMAL) -> None:
        """An admitted request ended without an answer."""
        self.inside = max(0, self.inside - 1)
        if urgency:
            self._others[urgency] -= 1
            if not self._others[urgency]:
                del self._others[urgency]

    def observe(
        self,
        decision: Decision,
        answer_interval: float,
        seconds: float,
        now: float,
        catching_up: bool = False,
    ) -> None:
        """Learn that a request admitted by `decision` was answered after so many seconds.

        answer_interval: by which it was admitted. catching_up: the queue is the backlog of a stall,
        which goes by itself: it does not count as standing.
        """
        self.lost(decision.urgency)
        if decision.passes:
            return
        queueing = max(0.0, seconds - answer_interval)
        predicted = decision.predicted - answer_interval
        target = self._target(answer_interval)
        if predicted > 0 and max(queueing, predicted) > target / 2:
            # The prediction already holds the correction: learn the rest that is still missing.
            ratio = min(2.0, max(0.5, queueing / predicted))
            moved = self.correction * (1 + CORRECTION_WEIGHT * (ratio - 1))
            self.correction = min(4.0, max(0.5, moved))
        self._seen_at = now
        if queueing <= target or catching_up:
            self._above_since = None
            # While it still refuses, the queue is short *because* it refuses.
            self.standing = self.standing and now - self._refused_at < INTERVAL
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= INTERVAL:
            self.standing = True

    def _target(self, answer_interval: float) -> float:
        return max(TARGET, TARGET_RUNS * answer_interval)


class Stalls:
    """The last times in which a pipeline answered nothing although requests waited: a part of it
    was away. Times are seconds of one clock, never going back; a request is known by the moment at
    which it was sent."""

    def __init__(self) -> None:
        self._answered = 0.0
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS)
        self._caught_up = 0.0

    def answered(
        self, sent: float, now: float, answer_interval: float, waited: bool = False
    ) -> bool:
        """A request was answered; whether a stall ended by it. answer_interval: the usual one, in
        seconds. waited: others have waited since the last answer; a young request may be answered
        first, by a node that covers."""
        since = self._answered if waited else max(sent, self._answered)
        self._answered = now
        stalled = self._is_stall(now - since, answer_interval)
        if stalled:
            self._stalls.append((since, now))
            self._caught_up = max(self._caught_up, now + CATCH_UP * (now - since))
        return stalled

    def is_catching_up(self, now: float) -> bool:
        """Whether requests may still wait that came during a stall."""
        return now < self._caught_up

    def during(self, sent: float, now: float, answer_interval: float) -> float:
        """Seconds of a request's time that fell into stalls, a present one included."""
        seconds = 0.0
        for began, ended in self._stalls:
            seconds += max(0.0, min(ended, now) - max(began, sent))
        silent = now - max(sent, self._answered)
        return seconds + silent if self._is_stall(silent, answer_interval) else seconds

    def _is_stall(self, silent: float, answer_interval: float) -> bool:
        return silent > STALL and silent > STALL_INTERVALS * answer_interval


class Enter(Enum):
    """What becomes of a request that wants to be let in."""

    SHED = auto()
    NO_LANE = auto()
    BROKEN = auto()
    PROBE = auto()  # let in, and sent once
    LET_IN = auto()


class Entering(NamedTuple):
    """A request of `budget` seconds that wants to be let in. fits: it would be answered in time.
    outage: seconds for which no lane has taken a request, 0.0 without an outage. probed: seconds
    since the last probe of it. blocked: a breaker is open."""

    budget: float
    fits: bool
    outage: float
    probed: float
    blocked: bool


ENTER: tuple[DecisionRule[Entering, Enter], ...] = (
    DecisionRule(
        "its predicted wait is longer than its budget allows, or queueing has stayed above the "
        "target for 0.5 s",
        lambda s: not s.fits,
        "refuses it with `RESOURCE_EXHAUSTED`, and says when to come back",
        lambda s: Enter.SHED,
    ),
    DecisionRule(
        "no lane has taken a request for longer than its budget, and another request probes: one "
        "in 0.25 s",
        lambda s: s.outage > 0 and s.budget <= s.outage and s.probed < PROBE_EVERY,
        "refuses it with `UNAVAILABLE`",
        lambda s: Enter.NO_LANE,
    ),
    DecisionRule(
        "the circuit breaker of a stage lets no request pass",
        lambda s: s.blocked,
        "refuses it with `UNAVAILABLE`, and the last failure",
        lambda s: Enter.BROKEN,
    ),
    DecisionRule(
        "no lane has taken a request for longer than its budget",
        lambda s: s.outage > 0 and s.budget <= s.outage,
        "lets it in, and sends it once",
        lambda s: Enter.PROBE,
    ),
    DecisionRule("else", lambda s: True, "lets it in", lambda s: Enter.LET_IN),
)


class Admitted(NamedTuple):
    """A request that is inside, to be handed to `ModelAdmission.leave` with its outcome."""

    decision: Decision
    answer_interval: float  # seconds from one answer to the next, 0.0 while none wait
    started: float
    budget: float
    is_probe: bool = False  # it is sent once only: no lane has taken a request for a while


Present = Callable[[int], frozenset[str]]


def _nobody_known(stage: int) -> frozenset[str]:
    return frozenset()


class ModelAdmission:
    """Lets requests for one model version in. `now` is `time.monotonic()`; every request that is
    let in must leave.

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
        self.answer_interval = 0.0
        """Mean seconds from one answer to the next while requests wait; 0.0 before that was
        seen."""
        self._answered = 0.0
        self._last_ok = 0.0
        self._usual = 0.05
        self._usual_at = 0.0
        self._busy = False
        self._queue = QueueAdmission()
        self._stalls = Stalls()
        self._outage_since: float | None = None  # when no lane took a request first
        self._probed = 0.0  # when a request was sent to see whether an outage lasts
        self._breakers: dict[int, Breaker] = {}
        # By stage: the nodes that were there when its breaker opened, and have not gone since.
        self._blamed: dict[int, frozenset[str]] = {}
        self._last_failure: dict[int, str] = {}

    @property
    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self._queue.inside

    @property
    def breakers(self) -> dict[int, BreakerState]:
        """The states of the breakers of stages that have failed, by stage; `WHOLE_PIPELINE` where
        the failing one is not known."""
        return {stage: breaker.state for stage, breaker in self._breakers.items()}

    def enter(self, budget: float, now: float, urgency: int = NORMAL) -> Admitted:
        """Raises `ResourceExhausted` or `Unavailable`, at once."""
        queue = self._queue
        self._busy = self._busy and queue.inside > 0
        # An interval that was measured under an earlier load does not count: with few inside,
        # anything is let in.
        is_busy = self._busy and queue.inside >= BUSY_FROM
        answer_interval = self.answer_interval if is_busy else 0.0
        decision = queue.decide(answer_interval, budget, now, urgency)
        if decision.admitted and self._outage_since is None and not self._breakers:
            return Admitted(decision, answer_interval, now, budget)  # the last rule of `ENTER`
        blocking: list[int] = []
        if self._breakers:
            self._close_where_nodes_came()
            # All breakers are asked before any probe is taken: a request that another stage's
            # breaker refuses must not take this one's probe, which would never be answered.
            blocking = [stage for stage, breaker in self._breakers.items() if breaker.blocks(now)]
        since = self._outage_since
        outage = 0.0 if since is None else now - since
        probed = now - self._probed
        entering = Entering(budget, decision.admitted, outage, probed, bool(blocking))
        does = decide(ENTER, entering)
        if does is Enter.SHED:
            self.shed += 1
            after = min(decision.retry_after, RETRY_AFTER)
            text = f"overload: {decision.reason}; try again in {after:.3f} s"
            raise ResourceExhausted(text, after)
        if does is not Enter.NO_LANE:
            for stage in blocking or self._breakers:
                self._breakers[stage].try_call(now)  # if it blocks, its lost probe can expire
        if does in (Enter.NO_LANE, Enter.BROKEN):
            self.refused += 1
            self._queue.lost(urgency)
            raise Unavailable(
                f"no lane has taken a request for {outage:.1f} s, longer than the budget: the "
                "server, or the link to it, is away"
                if does is Enter.NO_LANE
                else self._why_blocked(blocking[0])
            )
        is_probe = does is Enter.PROBE
        if is_probe:
            self._probed = now
        return Admitted(decision, answer_interval, now, budget, is_probe)

    def _why_blocked(self, stage: int) -> str:
        where = f"stage {stage}" if stage else "the pipeline"
        last = self._last_failure[stage]
        return (
            f"{where} failed repeatedly, and its circuit breaker is open; the last failure was "
            f"{last}"
        )

    def _close_where_nodes_came(self) -> None:
        """Forget the failures of a stage that has a node which was not there when they came."""
        for stage, blamed in list(self._blamed.items()):
            present = self._present(stage)
            self._blamed[stage] = blamed & present
            if present - blamed:
                del self._blamed[stage], self._breakers[stage]

    def leave(
        self,
        admitted: Admitted,
        result: Result | None,
        now: float,
        *,
        unusual: bool = False,
        judged: bool = True,
        no_lane_at: float | None = None,
    ) -> None:
        """A request ended; `result` is None when it was abandoned. unusual: its latency is not one
        to expect of other requests. judged: its failure counts for the breakers of the stages.
        no_lane_at: when it was sent for the last time, where no lane took it."""
        if result is None:
            self._queue.lost(admitted.decision.urgency)
            return
        if no_lane_at is not None:
            self.no_lane(no_lane_at)
        else:
            self._outage_since = None
        seconds = now - admitted.started
        ok, expired = result.status is Status.OK, result.status is Status.DEADLINE_EXCEEDED
        if ok:
            stalled = self._stalls.answered(admitted.started, now, self.answer_interval, self._busy)
            self._time_answer(now, stalled)
            if not unusual:
                self.latency.add(seconds, now)
        if ok or expired:
            seconds -= self._stalls.during(admitted.started, now, self.answer_interval)
            # A request that got no answer in time counts as one of at least twice its budget:
            # otherwise only fast answers would be learned from.
            seconds = 2 * seconds if expired else seconds
            catching_up = self._stalls.is_catching_up(now)
            self._queue.observe(
                admitted.decision, admitted.answer_interval, seconds, now, catching_up
            )
        else:
            self._queue.lost(admitted.decision.urgency)
        if judged and no_lane_at is None and (self._breakers or not ok):
            self.judge(admitted, result, now)
        if ok:
            self._last_ok = now

    def usual(self, now: float) -> float:
        """The p99 latency in seconds, at most `USUAL_FOR` old."""
        if now - self._usual_at > USUAL_FOR:
            self._usual = self.latency.percentile(0.99, now, default=0.05)
            self._usual_at = now
        return self._usual

    def _time_answer(self, now: float, stalled: bool) -> None:
        """An answer came: while requests wait, the time since the last one tells the interval,
        unless nobody worked on them."""
        if self._busy and not stalled:
            seconds = now - self._answered
            if self.answer_interval:
                # The mean, since answers come in bursts; bounded, since one gap during a
                # failover must not look like a slow pipeline.
                seconds = min(seconds, 4 * self.answer_interval)
                self.answer_interval += ANSWER_WEIGHT * (seconds - self.answer_interval)
            else:
                self.answer_interval = seconds
        self._answered = now
        self._busy = self._queue.inside > BUSY_FROM

    def no_lane(self, sent: float) -> None:
        """A request that was sent at that moment found no lane, or a link that brings nothing."""
        if self._outage_since is None or sent < self._outage_since:
            self._outage_since = self._probed = sent

    def judge(self, admitted: Admitted, result: Result, now: float) -> None:
        """Learn of the stages by the end of a request."""
        if result.status is Status.OK:
            for stage, breaker in self._breakers.items():
                breaker.record(True, now, admitted.started)
                if breaker.state is BreakerState.CLOSED:
                    self._blamed.pop(stage, None)
            return
        if result.status is Status.DEADLINE_EXCEEDED:
            usual = self.latency.percentile(0.99, now, default=0.5)
            if admitted.budget < usual or self._last_ok > admitted.started:
                return  # too small a budget, or others were answered: the mesh is not broken
        elif result.status not in (Status.UNAVAILABLE, Status.INTERNAL):
            return
        stage = result.stage or WHOLE_PIPELINE
        breaker = self._breakers.setdefault(stage, Breaker())
        was_closed = breaker.state is BreakerState.CLOSED
        self._last_failure[stage] = f"{result.status}: {result.message}"[:LONGEST_REASON]
        breaker.record(False, now, admitted.started)
        if was_closed and breaker.state is BreakerState.OPEN:
            self._blamed[stage] = self._present(stage)
