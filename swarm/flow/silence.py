"""What unanswered attempts in a row say: in fast mode nobody stores a request, and nobody tells.

While a stage hangs, everything that is sent to it is lost until that is known (0.6 s), and all that
asks again too. So that the retry budget is not spent by then, a few attempts ask for all: the
half-open state of a circuit breaker (Nygard, "Release It!"), but first attempts always go.

When it is over, what it swallowed is asked again, each once beside the retry budget: nobody has
computed it, so this multiplies no load. A few at a time, more with each answer (slow start, RFC
5681), since a stage refuses what finds 64 waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import inf

FEW, MANY = 3, 8  # silences in a row
DOUBT_FOR = 1.0  # seconds
PROBE_EVERY = 0.05  # seconds
REPEATED = 16  # at a time, of each requester


class Silences:
    """Of one model version. All times: seconds of `time.monotonic()`."""

    def __init__(self) -> None:
        self.troubled = False
        """Whether anything was ever silent or unserved: as long as not, no question needs
        asking."""
        self._count = 0
        self._doubted = -inf
        self._probe_at = 0.0
        self._ended = -inf  # the last lasting silence
        self._repeating = 0
        self._window = 1

    def heard(self, now: float, ok: bool = True) -> None:
        """An answer came; ok: no refusal."""
        if self.lasting:
            self._ended, self._window = now, 1
        elif self._repeating and ok:
            self._window = min(REPEATED, self._window + 1)
        self._count = 0

    def silent(self, now: float) -> None:
        """None came in good time."""
        self.troubled = True
        self._count += 1
        if self._count >= FEW:
            self._doubted = now + DOUBT_FOR

    def unserved(self, now: float) -> None:
        """Nobody listens, as the server says; or who does cannot serve, as it says itself."""
        self.troubled = True
        self._doubted = now + DOUBT_FOR

    @property
    def lasting(self) -> bool:
        """Whether it is more than a message that was lost."""
        return self._count >= FEW

    def doubtful(self, now: float) -> bool:
        """Whether not to go to a node that may hang, or to have ended: also when others answer,
        until this host's processes know of it."""
        return now < self._doubted

    def may_ask(self, now: float) -> bool:
        """Whether one more attempt may be made; while nothing is answered, one each
        `PROBE_EVERY`."""
        return self._count < MANY or now >= self._probe_at

    def asked(self, now: float) -> None:
        """One more attempt is made."""
        if self._count >= MANY:
            self._probe_at = now + PROBE_EVERY

    def swallowed(self, at: float) -> bool:
        """Whether an unanswered attempt was made before the last lasting silence ended."""
        return at < self._ended

    def may_repeat(self) -> bool:
        """Whether one more attempt that was swallowed may be repeated now."""
        return self._repeating < (1 if self.lasting else self._window)

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Around the attempt that repeats it."""
        self._repeating += 1
        try:
            yield
        finally:
            self._repeating -= 1
