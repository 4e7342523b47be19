"""Whether a node is slower now than when it was measured: hot, throttled, or shared with others.

Single runs vary with whatever else a machine does. Only a node that takes twice its time throughout
`SLOW_FOR` tells so, and only one that is back near its time as long takes it back. A node without
requests cannot know, and is given another try after `FORGET_AFTER`.
"""

from __future__ import annotations

from collections.abc import Sequence

SLOW_FROM, FAST_UNTIL = 2.0, 1.3  # times the measured pace
SLOW_FOR = 15.0  # seconds
FORGET_AFTER = 120.0  # seconds
MOST = 100.0


class Slowing:
    """`now`: seconds of any monotonic clock. factor: by which the measured pace is longer."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._since: float | None = None
        self._lowest = MOST
        self._heard = 0.0

    def observe(self, ratio: float | None, now: float) -> float:
        """Take in how many times its measured time a request takes at present; None where there
        are too few to tell. Returns `factor`."""
        if ratio is None:
            self._since = None
            if self.factor > 1.0 and now - self._heard >= FORGET_AFTER:
                self.factor = 1.0
            return self.factor
        self._heard = now
        changes = ratio < FAST_UNTIL if self.factor > 1.0 else ratio > SLOW_FROM
        if not changes:
            self._since = None
            return self.factor
        if self._since is None:
            self._since, self._lowest = now, MOST
        self._lowest = min(self._lowest, ratio)
        if now - self._since >= SLOW_FOR:
            self.factor = 1.0 if self.factor > 1.0 else self._lowest
            self._since = None
        return self.factor


def each_run(requests_by_batch: Sequence[int]) -> float:
    """Requests that a run computed together, on average; 1.0 without any. requests_by_batch: by
    the size of their batch, up to 1, 2, 4 …"""
    runs = sum(count / 2**bucket for bucket, count in enumerate(requests_by_batch))
    return sum(requests_by_batch) / runs if runs else 1.0
