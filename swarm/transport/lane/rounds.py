"""When a lane is tended: often while messages are in hand, otherwise together with other periodic
work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.periodic import BEAT, next_beat

SELDOM = 3 * BEAT  # seconds between the rounds of a lane that has nothing in hand


class Rounds:
    """Calls `tend` when it is due. It is stopped at first, and again after `stop`.

    A timer, and not a task that a timer wakes (measured: a quarter of an idle node's work).
    """

    __slots__ = ("_tend", "_timer", "are_often", "are_seldom")

    def __init__(self, tend: Callable[[], None]) -> None:
        self._tend = tend
        self._timer: asyncio.TimerHandle | None = None
        self.are_often = False
        self.are_seldom = False

    @property
    def due(self) -> float | None:
        """The loop's time of the next round; None while it is stopped."""
        return None if self._timer is None else self._timer.when()

    def plan(self, in_hand: bool, ack_wait: float) -> None:
        """Set the next round, instead of the one that was set. ack_wait: the lane's, seconds."""
        self.stop()
        loop = asyncio.get_running_loop()
        due = loop.time() + ack_wait / 3 if in_hand else next_beat(SELDOM)
        self.are_often, self.are_seldom = in_hand, not in_hand
        self._timer = loop.call_at(due, self._tend)

    def stop(self) -> None:
        """No more rounds."""
        self.are_often = self.are_seldom = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
