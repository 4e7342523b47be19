"""How many bytes a second a connection carries away from here. Pure.

Behind a large message goes a PING. The server reads both in order, so the PONG tells when it had
the message. Messages that queue up behind each other are measured from PONG to PONG.
"""

from __future__ import annotations

import math
from collections import deque

from swarm.flow.ack_wait import LINK_MARGIN
from swarm.flow.transfers import CAUTIOUS_RATE, NEAR_S

MOST_UNDER_WAY = 32  # messages that are measured at a time
RECENT_S = 1.0  # seconds for which the size of a message is that of the next ones
ROUND_TRIPS, REMEMBERED = 16, 16  # of the latest; keep-alives go once a second
# To a near server, the first large messages are measured, then one a second. Its link counts as
# slow from when the fastest of them went slower than `SLOW_FROM` (100 Mbit/s) until one goes at
# `SLOW_UNTIL`.
NEAR_FIRST, NEAR_EVERY_S = 4, 1.0
SLOW_FROM, SLOW_UNTIL = 12.5e6, 25e6  # bytes a second


class SendRate:
    """One connection's. Times in seconds of any monotonic clock."""

    __slots__ = (
        "_is_slow",
        "_last_pong",
        "_looked",
        "_sizes",
        "_slowness",
        "_trips",
        "_under_way",
        "round_trip",
        "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.round_trip = 0.0
        """Seconds of the shortest of the latest round trips; 0.0 before the first."""
        self.sent = 0
        """Large messages that were sent and measured."""
        self._trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._slowness: deque[float] = deque(maxlen=REMEMBERED)  # seconds a byte
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)
        self._under_way: deque[tuple[int, float]] = deque()  # bytes, when they were sent
        self._last_pong = -math.inf  # the last PONG behind a message
        self._looked = -math.inf  # when a message to a near server was measured
        self._is_slow = False

    @property
    def is_far(self) -> bool:
        """Whether the server is further away than this host and its neighbours, or the link to it
        slower than theirs."""
        return self.round_trip > NEAR_S or self._is_slow

    @property
    def rate(self) -> float:
        """Bytes a second; 0.0 while it is not known, and where the server is near; infinity where
        nothing can be seen of it."""
        if not self._slowness or not self.is_far:
            return 0.0
        slowness = self._usual_slowness
        return 1 / slowness if slowness > 0 else math.inf

    def transfer(self, now: float) -> float:
        """Seconds that the largest of the latest large messages takes, alone; 0.0 where none was
        sent of late, or the server is near."""
        if not self.rate or (not self._under_way and now - self._last_pong > RECENT_S):
            return 0.0
        return self._usual_slowness * max(self._sizes)

    @property
    def _usual_slowness(self) -> float:
        # The lower quartile: a message that waited behind others' traffic says little.
        return sorted(self._slowness)[len(self._slowness) // 4]

    @property
    def backlog(self) -> float:
        """Seconds that the messages under way may take until a far server has them all."""
        if not self._under_way or not self.is_far:
            return 0.0
        slowness = self._usual_slowness if self._slowness else 1 / CAUTIOUS_RATE
        return LINK_MARGIN * slowness * sum([size for size, _ in self._under_way])

    def has_carried(self, sent: int) -> bool:
        """Whether the server has all messages that were sent when `self.sent` was `sent`."""
        return self.sent - len(self._under_way) >= sent

    def tripped(self, seconds: float) -> None:
        """A PING and its PONG, without a message, took so long."""
        self._trips.append(seconds)
        self.round_trip = min(self._trips)

    def sends(self, size: int, now: float) -> bool:
        """A large message is sent: whether a PING is to follow it, whose PONG is told of."""
        if len(self._under_way) >= MOST_UNDER_WAY:
            return False
        if not self.is_far:
            if len(self._slowness) >= NEAR_FIRST and now - self._looked < NEAR_EVERY_S:
                return False
            self._looked = now
        self._under_way.append((size, now))
        self.sent += 1
        return True

    def answered(self, now: float) -> None:
        """The PONG behind the first of the messages under way came."""
        if not self._under_way:
            return
        size, sent = self._under_way.popleft()
        alone = sent >= self._last_pong
        seconds = now - sent - self.round_trip if alone else now - self._last_pong
        self._last_pong = now
        self._slowness.append(max(0.0, seconds) / size)
        self._sizes.append(size)
        # The best one counts: on a busy machine most messages to a near server are late at times.
        if len(self._slowness) >= NEAR_FIRST:
            limit = SLOW_UNTIL if self._is_slow else SLOW_FROM
            self._is_slow = min(self._slowness) * limit > 1

    def lost(self) -> None:
        """The connection ended: no PONG comes."""
        self._under_way.clear()
