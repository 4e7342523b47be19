"""Counts of the last five minutes: pure, each `now` in seconds."""

from __future__ import annotations

from collections import deque

SPAN, STEP = 300.0, 10.0  # seconds; the sums are right to a step


class RecentCounts:
    """Adds up to `of` kinds of counts at once, and forgets them after `SPAN`."""

    def __init__(self, of: int = 1) -> None:
        self._of = of
        self._steps: deque[tuple[int, list[int]]] = deque()

    def add(self, now: float, *amounts: int) -> None:
        """So many of each kind."""
        step = int(now / STEP)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, [0] * self._of))
            self._forget(now)
        counts = self._steps[-1][1]
        for place, amount in enumerate(amounts):
            counts[place] += amount

    def sums(self, now: float) -> list[int]:
        """Of each kind, in the last `SPAN` seconds."""
        self._forget(now)
        return [sum(counts[place] for _, counts in self._steps) for place in range(self._of)]

    def _forget(self, now: float) -> None:
        while self._steps and (self._steps[0][0] + 1) * STEP <= now - SPAN:
            self._steps.popleft()
