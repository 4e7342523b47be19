"""What unanswered attempts in a row say: in fast mode nobody stores a request, and nobody tells.

While a stage hangs, everything that is sent to it is lost until that is known (0.6 s), and all that
asks again too. So that the retry budget is not spent by then, a few attempts ask for all: the
half-open state of a circuit breaker (Nygard, "Release It!"), but first attempts always go.
"""

from __future__ import annotations

FEW, MANY = 3, 8  # silences in a row
DOUBT_FOR = 1.0  # seconds
PROBE_EVERY = 0.05  # seconds


class Silences:
    """Of one model version. All times: seconds of `time.monotonic()`."""

    def __init__(self) -> None:
        self._count = 0
        self._doubted = 0.0
        self._probe_at = 0.0

    def heard(self) -> None:
        """An answer came."""
        self._count = 0

    def silent(self, now: float) -> None:
        """None came in good time."""
        self._count += 1
        if self._count >= FEW:
            self._doubted = now + DOUBT_FOR

    @property
    def lasting(self) -> bool:
        """Whether it is more than a message that was lost."""
        return self._count >= FEW

    def doubtful(self, now: float) -> bool:
        """Whether to go by the server, which knows of others than the node that may hang."""
        return self._count > 0 and now < self._doubted

    def may_ask(self, now: float) -> bool:
        """Whether one more may ask again; while nothing is answered, each `PROBE_EVERY` one."""
        if self._count < MANY:
            return True
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_EVERY
        return True
