"""A circuit breaker: stop asking a stage that keeps failing, and find out cheaply when it works.

Closed, open, half-open as in Nygard, "Release It!" (2007). Open periods double while probes fail.
`CALLED` is asked for each request, `ENDED` for each outcome; the page shows both.
"""

from enum import Enum, StrEnum, auto
from typing import NamedTuple

from swarm.flow.backoff import Backoff
from swarm.flow.rules import DecisionRule, decide
from swarm.flow.window import SlidingCount

WINDOW_S = 10.0  # over which the failure rate is taken


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
    """Opens on consecutive failures or on a failure rate; closes after a probe that succeeds.

    consecutive: failures in a row that open it; smaller reacts faster to a dead peer.
    failure_rate: fraction of the window's calls, 0..1, that opens it once `min_calls` were seen.
    min_calls: calls in the window below which the rate says nothing.
    open_s: seconds until the first probe; doubles after each failed probe up to `max_open_s`.
    probe_timeout_s: seconds after which an unanswered probe counts as failed.
    Raises ValueError for a knob out of its range.
    """

    def __init__(
        self,
        *,
        consecutive: int = 5,
        failure_rate: float = 0.5,
        min_calls: int = 20,
        open_s: float = 0.5,
        max_open_s: float = 30.0,
        probe_timeout_s: float = 5.0,
    ) -> None:
        if not (consecutive >= 1 and 0 < failure_rate <= 1 and min_calls >= 1):
            raise ValueError("consecutive >= 1, 0 < failure_rate <= 1, min_calls >= 1")
        if not (0 < open_s <= max_open_s and probe_timeout_s > 0):
            raise ValueError("0 < open_s <= max_open_s, probe_timeout_s > 0")
        self.state = BreakerState.CLOSED
        self._consecutive = consecutive
        self._failure_rate = failure_rate
        self._min_calls = min_calls
        self._calls = SlidingCount(WINDOW_S)
        self._failures = SlidingCount(WINDOW_S)
        self._failures_in_a_row = 0
        self._open_periods = Backoff(open_s, max_open_s)
        self._open_until = 0.0
        self._opened = 0.0  # since when no call but probes passes
        self._probe_timeout_s = probe_timeout_s
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
        probe_over = probe_over and now - self._probe_at >= self._probe_timeout_s
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
        often = calls >= self._min_calls and failures >= self._failure_rate * calls
        return often or self._failures_in_a_row >= self._consecutive

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
