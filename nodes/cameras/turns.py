"""Whose frame is sent next, and how many are on their way. Pure.

A frame that waits behind others grows old. So as many are on their way as keep the slowest stage
busy, and no more: with one frame at a time in each stage, none waits for another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from swarm.flow.ack_wait import link_credit
from swarm.flow.latency import Usual
from swarm.wire.hops import Hop

# A stage that takes less is not worth a second frame on its way.
SHORTEST = 0.001  # seconds
IDLE_SHARE = 0.1  # of the slowest stage's time, which is not worth a frame that waits for it


class Turns:
    """most: frames on their way at the most, over all sources."""

    def __init__(self, most: int) -> None:
        self.in_flight = 0
        self._most = most
        self._way = Usual()  # seconds from the edge to the answer, without queues
        self._slowest = Usual()  # seconds of the slowest hop
        self._served: dict[str, float] = {}

    def next(self, waiting: Iterable[str], transfer: float, round_trip: float) -> str | None:
        """The source that was served longest ago, of those that wait; None where no frame may be
        sent now. transfer, round_trip: seconds, as of `swarm.flow.ack_wait.link_credit`."""
        if self.in_flight >= self.allowed(transfer, round_trip):
            return None
        return min(waiting, key=lambda name: self._served.get(name, -math.inf), default=None)

    def allowed(self, transfer: float, round_trip: float) -> int:
        """Frames that may be on their way."""
        credit = link_credit(round_trip, transfer, self._way.ewma)
        most = self._most if credit is None else min(self._most, credit)
        if not self._way.known:
            return 1
        busy = self._way.ewma / max(self._slowest.ewma, SHORTEST) - IDLE_SHARE
        return max(1, min(most, math.ceil(busy)))

    def began(self, source: str, now: float) -> None:
        self.in_flight += 1
        self._served[source] = now

    def ended(self) -> None:
        self.in_flight -= 1

    def answered(self, latency: float, hops: Iterable[Hop]) -> None:
        """latency: seconds. hops: as other nodes say them: any number is possible."""
        hops = list(hops)
        queued = sum(max(0, hop.queue_us) for hop in hops) / 1e6
        slowest = max((hop.compute_us for hop in hops), default=0) / 1e6
        self._way.add(max(0.0, latency - min(queued, latency)))
        self._slowest.add(min(max(0.0, slowest), latency))
