"""Attempts that nobody answers, though no lane keeps them: only the requester can notice that.

In fast mode a stage that hangs swallows each request sent to it until gossip knows of it (0.6 s),
and each further attempt too. The messages that one process hands directly to another of its host
are noticed in the same way. Three rules follow.

- Probes. While many attempts in a row are unanswered, a few retries ask for all, so that the retry
  budget is not spent by the time the stage is known to hang: the half-open state of a circuit
  breaker (Nygard, "Release It!"). First attempts always go.
- Doubt. For a while, requests avoid the way on which attempts were unanswered.
- Repeats. When the silence is over, each attempt that it swallowed is repeated once, beside the
  retry budget: nobody has computed it, so a repeat multiplies no load. Repeats are few at a time,
  and more with each answer (slow start, RFC 5681), since a stage refuses requests while 64 wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import inf

# What follows from unanswered attempts in a row. All times are seconds.
# Unanswered attempts in a row after which a stage may hang: more than one lost message.
LASTING_AFTER = 3
PROBES_AFTER = 8  # unanswered attempts in a row after which few ask for all
PROBE_EVERY = 0.05  # time between two retries while few ask for all
DOUBT_FOR = 1.0  # time for which requests avoid the way of unanswered attempts
REPEATS = 16  # repeats at a time, at most, of each requester


class Silences:
    """The unanswered attempts of one model version. All times: seconds of `time.monotonic()`."""

    def __init__(self) -> None:
        self.troubled = False
        """Whether an attempt was ever unanswered or unserved. Until then the other questions need
        not be asked."""
        self._in_a_row = 0
        self._doubted_until = -inf
        self._probe_at = 0.0
        self._ended = -inf  # when the last lasting silence ended
        self._repeating = 0
        self._most_repeats = 1

    # --- questions ------------------------------------------------------------------------

    @property
    def lasting(self) -> bool:
        """Whether so many attempts in a row were unanswered that a stage may hang."""
        return self._in_a_row >= LASTING_AFTER

    def doubtful(self, now: float) -> bool:
        """Whether requests should avoid a node that may hang or may have ended.

        An answer does not end the doubt, since another node may have given it. The doubt passes
        with its time, within which the processes of this host learn whether the node has ended.
        """
        return now < self._doubted_until

    def swallowed(self, at: float) -> bool:
        """Whether the last lasting silence swallowed an unanswered attempt made `at`: the attempt
        is older than the end of that silence."""
        return at < self._ended

    def may_ask(self, now: float) -> bool:
        """Whether to ask again; while nothing is answered, one retry each `PROBE_EVERY`."""
        return self._in_a_row < PROBES_AFTER or now >= self._probe_at

    def may_repeat(self) -> bool:
        """Whether one more attempt that was swallowed may be repeated now (see `repeating`)."""
        return self._repeating < (1 if self.lasting else self._most_repeats)

    # --- events ---------------------------------------------------------------------------

    def answered(self, now: float, ok: bool = True) -> None:
        """An answer came. ok: it is no refusal."""
        if self.lasting:
            self._ended, self._most_repeats = now, 1
        elif self._repeating and ok:
            self._most_repeats = min(REPEATS, self._most_repeats + 1)
        self._in_a_row = 0

    def silent(self, now: float) -> None:
        """No answer came in good time."""
        self.troubled = True
        self._in_a_row += 1
        if self.lasting:
            self._doubted_until = now + DOUBT_FOR

    def unserved(self, now: float) -> None:
        """The server says that nobody listens, or the node that listens says that it cannot
        serve."""
        self.troubled = True
        self._doubted_until = now + DOUBT_FOR

    def asked(self, now: float) -> None:
        """One more attempt is made."""
        if self._in_a_row >= PROBES_AFTER:
            self._probe_at = now + PROBE_EVERY

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Around an attempt that repeats a swallowed one."""
        self._repeating += 1
        try:
            yield
        finally:
            self._repeating -= 1
