"""A circuit breaker: stop asking a stage that keeps failing, and find out cheaply when it works.

Closed, open, half-open as in Nygard, "Release It!" (2007). Open periods double while probes fail.
`CALLED` is asked for each request, `ENDED` for each outcome; the page shows both.
"""

from enum import Enum, StrEnum, auto
from typing import NamedTuple

from swarm.flow.backoff import Backoff
from swarm.flow.rules import DecisionRule, decide
from swarm.flow.window import SlidingCount

CONSECUTIVE = 5  # failures in a row that open it; smaller reacts faster to a dead peer
FAILURE_RATE = 0.5  # of the calls in the window, which opens it …
MIN_CALLS = 20  # … from so many calls on
WINDOW_S = 10.0  # seconds over which the failure rate is taken
OPEN_S = 0.5  # seconds until the first probe; doubled by each probe that fails …
# … up to so many: a control loop cannot wait half a minute for a stage that came back.
MOST_OPEN_S = 1.0
PROBE_TIMEOUT_S = 1.0  # seconds after which an unanswered probe counts as failed


class BreakerState(StrEnum):
    """closed: calls pass; open: none pass; half-open: one probe at a time passes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerMove(Enum):
    """What follows. PROBE: the call passes, and the breaker is half-open. STAY: a call does not
    pass, an outcome changes nothing."""

    PASS = auto()
    PROBE = auto()
    STAY = auto()
    OPEN = auto()
    CLOSE = auto()


class BreakerFacts(NamedTuple):
    """waits: it is not yet time for a probe. probe_over: the last probe is unanswered for too long.
    Of a call that has ended, ok: it was answered; since_opened: it was made since the breaker
    opened; before_probe: it was made before the last probe; too_many: too many have failed."""

    state: BreakerState
    waits: bool
    probe_over: bool
    ok: bool
    since_opened: bool
    before_probe: bool
    too_many: bool


BreakerRules = tuple[DecisionRule[BreakerFacts, BreakerMove], ...]

CALLED: BreakerRules = (
    DecisionRule(
        "closed",
        lambda s: s.state is BreakerState.CLOSED,
        "the request passes",
        lambda s: BreakerMove.PASS,
    ),
    DecisionRule(
        "open, and the time until the next probe is not over",
        lambda s: s.state is BreakerState.OPEN and s.waits,
        "the request is refused with `UNAVAILABLE`",
        lambda s: BreakerMove.STAY,
    ),
    DecisionRule(
        "open",
        lambda s: s.state is BreakerState.OPEN,
        "half-open: the request passes as the probe",
        lambda s: BreakerMove.PROBE,
    ),
    DecisionRule(
        "half-open, and the probe is unanswered for 1 s",
        lambda s: s.probe_over,
        "open for twice as long as before, at most 1 s; the request is refused with `UNAVAILABLE`",
        lambda s: BreakerMove.OPEN,
    ),
    DecisionRule(
        "half-open",
        lambda s: True,
        "the request is refused with `UNAVAILABLE`",
        lambda s: BreakerMove.STAY,
    ),
)

ENDED: BreakerRules = (
    DecisionRule(
        "closed; five requests in a row have failed, or half of 20 or more within 10 s",
        lambda s: s.too_many,
        "open for 0.5 s",
        lambda s: BreakerMove.OPEN,
    ),
    DecisionRule(
        "open; a request is answered that was sent since it opened: a probe that took long",
        lambda s: s.state is BreakerState.OPEN and s.ok and s.since_opened,
        "closed",
        lambda s: BreakerMove.CLOSE,
    ),
    DecisionRule(
        "half-open; a request has ended that was sent before the probe",
        lambda s: s.state is BreakerState.HALF_OPEN and s.before_probe,
        "nothing: it says nothing about now",
        lambda s: BreakerMove.STAY,
    ),
    DecisionRule(
        "half-open; the probe is answered",
        lambda s: s.state is BreakerState.HALF_OPEN and s.ok,
        "closed",
        lambda s: BreakerMove.CLOSE,
    ),
    DecisionRule(
        "half-open; the probe has failed",
        lambda s: s.state is BreakerState.HALF_OPEN,
        "open for twice as long as before, at most 1 s",
        lambda s: BreakerMove.OPEN,
    ),
    DecisionRule("else", lambda s: True, "nothing", lambda s: BreakerMove.STAY),
)


class Breaker:
    """Opens on failures in a row or on a failure rate; closes after a probe that succeeds."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self._calls = SlidingCount(WINDOW_S)
        self._failures = SlidingCount(WINDOW_S)
        self._failures_in_a_row = 0
        self._open_periods = Backoff(OPEN_S, MOST_OPEN_S)
        self._open_until = 0.0
        self._opened = 0.0  # since when no call but probes passes
        self._probe_at = 0.0  # of the last probe

    def blocks(self, now: float) -> bool:
        """Whether `try_call` would refuse a call at `now` (seconds). Changes nothing.

        A probe that was lost does not run out here: this stays True until somebody calls
        `try_call`, which opens the breaker again and refuses once more.
        """
        return decide(CALLED, self._facts(now)) in (BreakerMove.STAY, BreakerMove.OPEN)

    def try_call(self, now: float) -> bool:
        """Take leave for a call at `now` (seconds): the probe, where the breaker is half-open.

        Each True must be followed by `record`.
        """
        move = decide(CALLED, self._facts(now))
        if move is BreakerMove.PROBE:
            self.state, self._probe_at = BreakerState.HALF_OPEN, now
        elif move is BreakerMove.OPEN:
            self._open(now)
        return move in (BreakerMove.PASS, BreakerMove.PROBE)

    def record(self, ok: bool, now: float, started: float | None = None) -> None:
        """Report a call's outcome at `now` (seconds). started: when the call was made (seconds), if
        known."""
        too_many = self.state is BreakerState.CLOSED and self._count(ok, now)
        move = decide(ENDED, self._facts(now, ok, started, too_many))
        if move is BreakerMove.OPEN:
            self._open(now)
        elif move is BreakerMove.CLOSE:
            self._close()

    def _facts(
        self, now: float, ok: bool = False, started: float | None = None, too_many: bool = False
    ) -> BreakerFacts:
        probe_over = self.state is BreakerState.HALF_OPEN
        probe_over = probe_over and now - self._probe_at >= PROBE_TIMEOUT_S
        return BreakerFacts(
            self.state,
            waits=now < self._open_until,
            probe_over=probe_over,
            ok=ok,
            since_opened=started is not None and started > self._opened,
            before_probe=started is not None and started < self._probe_at,
            too_many=too_many,
        )

    def _count(self, ok: bool, now: float) -> bool:
        """Count a call's outcome; whether too many have failed."""
        self._calls.add(1, now)
        if ok:
            self._failures_in_a_row = 0
            return False
        self._failures_in_a_row += 1
        self._failures.add(1, now)
        calls, failures = self._calls.total(now), self._failures.total(now)
        often = calls >= MIN_CALLS and failures >= FAILURE_RATE * calls
        return often or self._failures_in_a_row >= CONSECUTIVE

    def _open(self, now: float) -> None:
        if self.state is BreakerState.CLOSED:
            self._opened = now
        self.state = BreakerState.OPEN
        self._open_until = now + self._open_periods.next()

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._open_periods.reset()
        self._failures_in_a_row = 0
        self._calls.clear()
        self._failures.clear()
