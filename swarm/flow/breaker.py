"""A circuit breaker: stop asking what keeps failing, and find out cheaply when it works again.

Closed, open, half-open as in Nygard, "Release It!" (2007). Open periods double while probes fail.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from swarm.flow.backoff import Backoff
from swarm.flow.window import SlidingCount


class BreakerState(StrEnum):
    """closed: calls pass; open: none pass; half-open: one probe at a time passes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state, at `now` (seconds), and why."""

    before: BreakerState
    after: BreakerState
    now: float
    reason: str


class Breaker:
    """Opens on consecutive failures or on a failure rate; closes after a probe that succeeds.

    consecutive: failures in a row that open it; smaller reacts faster to a dead peer.
    failure_rate: fraction of the window's calls, 0..1, that opens it once `min_calls` were seen.
    min_calls: calls in the window below which the rate says nothing.
    window_s: seconds over which the rate is taken.
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
        window_s: float = 10.0,
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
        self._calls = SlidingCount(window_s)
        self._failures = SlidingCount(window_s)
        self._row = 0
        self._pauses = Backoff(open_s, max_open_s)
        self._open_s = open_s
        self._probe_timeout_s = probe_timeout_s
        self._opened_at = 0.0
        self._probe_at: float | None = None
        self._transitions: deque[Transition] = deque(maxlen=64)

    def allow(self, now: float) -> bool:
        """Whether a call may be made at `now` (seconds). Each True must be followed by `record`."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN:
            if now - self._opened_at < self._open_s:
                return False
            self._go(BreakerState.HALF_OPEN, now, f"{self._open_s:g} s have passed")
        elif self._probe_at is not None:
            if now - self._probe_at >= self._probe_timeout_s:
                self._open(now, "the probe was not answered")
            return False
        self._probe_at = now
        return True

    def blocks(self, now: float) -> bool:
        """Whether `allow` would say no at `now` (seconds), without taking the probe.

        Changes nothing, so a probe that was lost does not run out here: until somebody calls
        `allow`, which reopens the breaker and says no once more, this stays True.
        """
        if self.state is BreakerState.OPEN:
            return now - self._opened_at < self._open_s
        return self.state is BreakerState.HALF_OPEN and self._probe_at is not None

    def record(self, ok: bool, now: float, started: float | None = None) -> None:
        """Report a call's outcome at `now` (seconds).

        started: when the call was made (seconds), if known. While half-open, an answer to a call
        made before the probe is ignored: it says nothing about now.
        """
        if self.state is BreakerState.OPEN:
            return
        if self.state is BreakerState.HALF_OPEN:
            if self._probe_at is None or (started is not None and started < self._probe_at):
                return
            if not ok:
                self._open(now, "the probe failed")
                return
            self._pauses.reset()
            self._calls.clear()
            self._failures.clear()
            self._row = 0
            self._go(BreakerState.CLOSED, now, "the probe succeeded")
            return
        self._calls.add(1, now)
        if ok:
            self._row = 0
            return
        self._row += 1
        self._failures.add(1, now)
        calls, failures = self._calls.total(now), self._failures.total(now)
        if self._row >= self._consecutive:
            self._open(now, f"{self._row} failures in a row")
        elif calls >= self._min_calls and failures >= self._failure_rate * calls:
            self._open(now, f"{failures} of {calls} calls failed")

    def take_transitions(self) -> list[Transition]:
        """The changes since the last call, oldest first (at most the latest 64)."""
        taken = list(self._transitions)
        self._transitions.clear()
        return taken

    def _open(self, now: float, reason: str) -> None:
        self._opened_at = now
        self._open_s = self._pauses.next()
        self._probe_at = None
        self._go(BreakerState.OPEN, now, reason)

    def _go(self, state: BreakerState, now: float, reason: str) -> None:
        self._transitions.append(Transition(self.state, state, now, reason))
        self.state = state
        if state is not BreakerState.HALF_OPEN:
            self._probe_at = None
