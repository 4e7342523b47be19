"""How a live source keeps to a slower link: few on their way, the newest first. Pure.

A message that is sent while another one fills the link only waits there, and arrives old.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from swarm.flow.ack_wait import link_credit

T = TypeVar("T")


class CaptureBacklog(Generic[T]):
    """Captures that wait to be sent.

    capacity: captures that may wait. most: captures in flight. drops: whether the oldest one gives
    way to the newest; else the newest has to wait outside. dropped: how many were.
    """

    __slots__ = ("_capacity", "_drops", "_most", "_waiting", "dropped", "in_flight")

    def __init__(self, capacity: int, most: int, drops: bool) -> None:
        self._capacity = capacity
        self._most = most
        self._drops = drops
        self._waiting: deque[T] = deque()
        self.in_flight = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the next capture has to wait outside."""
        return not self._drops and len(self._waiting) >= self._capacity

    def add(self, capture: T) -> None:
        """A capture waits from now on."""
        if self._drops and len(self._waiting) >= self._capacity:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(capture)

    def take(self, transfer: float, round_trip: float, mesh_time: float) -> T | None:
        """The capture to be sent now, None where none is, or where the link has enough.

        transfer: seconds that one takes on the link, 0.0 where it is fast or unknown. round_trip:
        seconds, without a message's size. mesh_time: seconds that the mesh works on one.
        Raises ValueError for a negative time or a NaN.
        """
        busy = link_credit(round_trip, transfer, mesh_time)
        most = self._most if busy is None else min(self._most, busy)
        if not self._waiting or self.in_flight >= most:
            return None
        if busy is not None and self._drops:
            self.dropped += len(self._waiting) - 1
            self._waiting = deque([self._waiting[-1]])
        self.in_flight += 1
        return self._waiting.popleft()

    def ended(self) -> None:
        """One that was taken is answered, or failed."""
        self.in_flight -= 1
