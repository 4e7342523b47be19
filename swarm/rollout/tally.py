"""What one requester observed of a version under rollout: for each guard, in all and of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from swarm.rollout.guards import Guard
from swarm.rollout.verdict import Seen

RECENT = 10  # seconds
_NONE = Seen()


class Tally:
    """Counts by guard. `now` in seconds, of one clock. Takes constant memory."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = tuple(guards)
        self._total = [_NONE] * len(self._guards)
        self._slots: deque[tuple[int, list[Seen]]] = deque(maxlen=RECENT)  # by whole second

    def answered(self, seconds: float, failed: bool, now: float) -> None:
        """A request of the new version ended."""
        for index, guard in enumerate(self._guards):
            if guard.measure != "agree":
                self._add(index, guard.is_bad(seconds, failed), now)

    def compared(self, alike: bool, now: float) -> None:
        """A copy of a request was answered by the new version, and compared."""
        for index, guard in enumerate(self._guards):
            if guard.measure == "agree":
                self._add(index, not alike, now)

    def _add(self, index: int, bad: bool, now: float) -> None:
        seen = Seen(1, int(bad))
        self._total[index] += seen
        second = int(now)
        if not self._slots or self._slots[-1][0] != second:
            self._slots.append((second, [_NONE] * len(self._guards)))
        self._slots[-1][1][index] += seen

    def total(self) -> tuple[Seen, ...]:
        """Since the beginning, by guard."""
        return tuple(self._total)

    def recent(self, now: float) -> tuple[Seen, ...]:
        """Of the last `RECENT` seconds, by guard."""
        recent = [_NONE] * len(self._guards)
        for second, counts in self._slots:
            if second > int(now) - RECENT:
                recent = [a + b for a, b in zip(recent, counts, strict=True)]
        return tuple(recent)
