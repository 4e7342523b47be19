"""What one requester observed of a version under rollout: for each guard, in all and of late.

A version is judged beside the one that serves, at the same place and time: what both fail alike,
such as requests behind a cut link, tells nothing of either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.rollout.guards import RolloutGuard
from swarm.rollout.verdict import GuardCounts

RECENT = 10  # seconds
MOMENT = 2  # seconds that count as one time, in which both versions are compared
_NONE = GuardCounts()


@dataclass(slots=True)
class _Moment:
    """Counts by guard. began: seconds. beside: of the version that serves; bad ones by share."""

    began: int
    new: list[GuardCounts]
    beside: list[GuardCounts]

    def evidence(self, index: int) -> GuardCounts:
        """What a guard counts of the new version: as large a share of its requests as the version
        beside it had bad is left out of the bad ones."""
        new, beside = self.new[index], self.beside[index]
        alike = min(new.bad, round(new.n * beside.share))
        return GuardCounts(new.n - alike, new.bad - alike)


class GuardTally:
    """Counts by guard. `now` in seconds, of one clock. Takes constant memory."""

    def __init__(self, guards: Sequence[RolloutGuard]) -> None:
        self._guards = tuple(guards)
        self._past = [_NONE] * len(self._guards)  # of moments that are not of late any more
        self._moments: deque[_Moment] = deque()

    def answered(self, seconds: float, failed: bool, now: float, *, beside: bool = False) -> None:
        """A request ended: of the new version, or of the one beside it."""
        for index, guard in enumerate(self._guards):
            if guard.measure != "agree":
                # The version beside excuses failures alone: a bound of time is the operator's word.
                bad = failed if beside else guard.is_bad(seconds, failed)
                self._add(index, bad, now, beside)

    def compared(self, alike: bool, now: float) -> None:
        """A copy of a request was answered by the new version, and compared."""
        for index, guard in enumerate(self._guards):
            if guard.measure == "agree":
                self._add(index, not alike, now, False)
                # The answer beside it is the measure, and agrees with itself.
                self._add(index, False, now, True)

    def _add(self, index: int, bad: bool, now: float, beside: bool) -> None:
        began = int(now) // MOMENT * MOMENT
        if not self._moments or self._moments[-1].began != began:
            while self._moments and self._moments[0].began <= began - RECENT - MOMENT:
                past = self._moments.popleft()
                for each in range(len(self._guards)):
                    self._past[each] += past.evidence(each)
            none = [_NONE] * len(self._guards)
            self._moments.append(_Moment(began, none, list(none)))
        counts = self._moments[-1].beside if beside else self._moments[-1].new
        counts[index] += GuardCounts(1, int(bad))

    def total(self) -> tuple[GuardCounts, ...]:
        """Since the beginning, by guard."""
        return tuple(
            sum((m.evidence(index) for m in self._moments), past)
            for index, past in enumerate(self._past)
        )

    def recent(self, now: float) -> tuple[GuardCounts, ...]:
        """Of the last `RECENT` seconds, by guard."""
        late = [m for m in self._moments if m.began > int(now) - RECENT]
        return tuple(
            sum((m.evidence(index) for m in late), _NONE) for index in range(len(self._guards))
        )
