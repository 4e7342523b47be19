"""Times in which a pipeline answered nothing although requests waited: a part of it was away.

The time that a request waited for a missing part says nothing of the queue in front of a pipeline
that works.
"""

from collections import deque

LEAST = 0.1  # seconds without an answer from which it was a stall
LEAST_PACES = 4.0  # and so many times the usual gap between two answers
KEPT = 16  # stalls
# Times its length, after a stall, in which its backlog may still be there. A pipeline that is busy
# for four fifths of its time, and takes what came meanwhile as well, needs four times as long.
CATCH_UP = 4.0


class Stalls:
    """The last stalls. Times are seconds of one clock, never going back; a request is known by the
    moment at which it was sent."""

    def __init__(self) -> None:
        self._answered = 0.0
        self._stalls: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._caught_up = 0.0

    def answered(self, sent: float, now: float, pace: float, waited: bool = False) -> bool:
        """A request was answered; whether a stall ended by it. pace: seconds, the usual gap.
        waited: others have waited since the last answer; a young request may be answered first,
        by a node that covers."""
        since = self._answered if waited else max(sent, self._answered)
        self._answered = now
        stalled = _is_stall(now - since, pace)
        if stalled:
            self._stalls.append((since, now))
            self._caught_up = max(self._caught_up, now + CATCH_UP * (now - since))
        return stalled

    def is_catching_up(self, now: float) -> bool:
        """Whether requests may still wait that came during a stall."""
        return now < self._caught_up

    def during(self, sent: float, now: float, pace: float) -> float:
        """Seconds of a request's time that fell into stalls, a present one included."""
        seconds = 0.0
        if self._stalls:
            for began, ended in self._stalls:
                seconds += max(0.0, min(ended, now) - max(began, sent))
        silent = now - max(sent, self._answered)
        return seconds + silent if _is_stall(silent, pace) else seconds


def _is_stall(silent: float, pace: float) -> bool:
    return silent > LEAST and silent > LEAST_PACES * pace
