"""Whose turn it is, where several forwarders serve one site. Pure.

A wrong guess does no harm: the site stores no answer twice. It only costs computing twice.
"""

from __future__ import annotations

TAKE_OVER_AFTER = 3.0  # seconds without progress while requests wait


class ForwarderTurn:
    """Times are seconds of one clock. mine: whether this forwarder works now."""

    def __init__(self, now: float) -> None:
        self.mine = True
        self._moved = now
        self._tail = -1

    def lost(self, now: float) -> None:
        """Somebody else has stored an answer in this one's place: it is at work."""
        self.mine, self._moved = False, now

    def saw(self, tail: int, waiting: bool, now: float) -> None:
        """A look at the site. tail: the last sequence of its answers. waiting: whether a request
        there has no answer."""
        if tail != self._tail or not waiting:
            self._tail, self._moved = tail, now
        elif now - self._moved > TAKE_OVER_AFTER:
            self.mine, self._moved = True, now
