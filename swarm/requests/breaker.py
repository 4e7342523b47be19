"""A circuit breaker: stop asking a stage that keeps failing, and find out cheaply when it works.

Closed, open, half-open as in Nygard, "Release It!" (2007). Open periods double while probes fail.
"""

from enum import StrEnum

from swarm.flow.backoff import Backoff
from swarm.flow.window import SlidingCount

WINDOW_S = 10.0  # over which the failure rate is taken


class BreakerState(StrEnum):
    """closed: calls pass; open: none pass; half-open: one probe at a time passes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


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
        self._probe_at: float | None = None

    def blocks(self, now: float) -> bool:
        """Whether `try_call` would refuse a call at `now` (seconds). Changes nothing.

        A probe that was lost does not run out here: this stays True until somebody calls
        `try_call`, which opens the breaker again and refuses once more.
        """
        if self.state is BreakerState.OPEN:
            return now < self._open_until
        return self.state is BreakerState.HALF_OPEN and self._probe_at is not None

    def try_call(self, now: float) -> bool:
        """Take leave for a call at `now` (seconds): the probe, where the breaker is half-open.

        Each True must be followed by `record`.
        """
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN:
            if now < self._open_until:
                return False
            self.state = BreakerState.HALF_OPEN
        elif self._probe_at is not None:
            if now - self._probe_at >= self._probe_timeout_s:
                self._open(now)
            return False
        self._probe_at = now
        return True

    def record(self, ok: bool, now: float, started: float | None = None) -> None:
        """Report a call's outcome at `now` (seconds).

        started: when the call was made (seconds), if known. While half-open, an answer to a call
        made before the probe is ignored: it says nothing about now. A probe that succeeds after its
        timeout closes the breaker all the same.
        """
        if self.state is BreakerState.OPEN:
            if ok and started is not None and started > self._opened:
                self._close()  # since it opened, only probes were let through
            return
        if self.state is BreakerState.HALF_OPEN:
            if self._probe_at is None or (started is not None and started < self._probe_at):
                return
            if ok:
                self._close()
            else:
                self._open(now)
            return
        self._calls.add(1, now)
        if ok:
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        self._failures.add(1, now)
        calls, failures = self._calls.total(now), self._failures.total(now)
        often = calls >= self._min_calls and failures >= self._failure_rate * calls
        if often or self._failures_in_a_row >= self._consecutive:
            self._open(now)

    def _open(self, now: float) -> None:
        if self.state is BreakerState.CLOSED:
            self._opened = now
        self.state = BreakerState.OPEN
        self._open_until = now + self._open_periods.next()
        self._probe_at = None

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._open_periods.reset()
        self._probe_at = None
        self._failures_in_a_row = 0
        self._calls.clear()
        self._failures.clear()
