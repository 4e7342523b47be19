"""What a lane sees of the link that its messages come over: the round trip, and the rate. Pure.

A message that comes over a slow link is on its way for longer than a stage works on it. The server
counts `ack_wait` from the moment at which it writes the message, so the time on the way belongs to
it; and each message asked for in advance waits on the link behind those before it.
"""

from __future__ import annotations

import math
from collections import deque

from swarm.flow.ack_wait import link_credit, link_wait

NEAR_S = 0.002
"""Round trips under this are of one host or one switch, where nothing is assumed about the rate."""
CAUTIOUS_RATE = 250_000.0
"""Bytes a second (2 Mbit/s) that a far link is trusted with before its first message."""
VISIBLE = 4096
"""Bytes from which a message's time on the way says something about the rate."""
REMEMBERED = 16  # messages
LATE_FOR_S = 60.0  # seconds for which a wait that was too short is remembered


class Transfers:
    """The latest messages' times on their way. Times in seconds of any monotonic clock.

    expected: bytes of a message, before the first one came; 0 where nobody knows.
    """

    __slots__ = (
        "_at_least",
        "_at_least_until",
        "_expected",
        "_measured",
        "_sizes",
        "_slowness",
        "round_trip",
    )  # fmt: skip

    def __init__(self, expected: int = 0) -> None:
        self.round_trip = 0.0
        """Seconds of the shortest round trip to the server that is known of late."""
        self._expected = expected
        self._measured = False
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)
        self._slowness: deque[float] = deque(maxlen=REMEMBERED)  # seconds a byte
        self._at_least = 0.0
        self._at_least_until = 0.0

    @property
    def is_far(self) -> bool:
        """Whether the server is further away than this host and its neighbours."""
        return self.round_trip > NEAR_S

    @property
    def is_guessed(self) -> bool:
        """Whether the rate is an assumption: the link is far and no message has come yet."""
        return self.is_far and not self._measured and self._expected >= VISIBLE

    @property
    def transfer(self) -> float:
        """Seconds that the largest of the latest messages takes on the link, alone."""
        if self.is_guessed:
            return self._expected / CAUTIOUS_RATE
        return self._usual_slowness * max(self._sizes, default=0)

    @property
    def rate(self) -> float:
        """Bytes a second; 0.0 where the link is near, or its rate is not known or not seen."""
        slowness = self._usual_slowness if self.is_far else 0.0
        return 1 / slowness if slowness else 0.0

    @property
    def _usual_slowness(self) -> float:
        """Seconds a byte, 0.0 before the first message."""
        if not self._slowness:
            return 0.0
        # The lower quartile: messages that waited behind others count little, and so does a message
        # that looks too fast because the server's clock was guessed wrong.
        return sorted(self._slowness)[len(self._slowness) // 4]

    def received(self, size: int, seconds: float) -> None:
        """A message of `size` bytes was on its way for `seconds`, half a round trip included.

        Raises `ValueError` for a NaN.
        """
        if math.isnan(seconds):
            raise ValueError("a message was on its way for NaN seconds")
        self._measured = True
        if size >= VISIBLE:
            self._sizes.append(size)
            self._slowness.append(max(0.0, seconds - self.round_trip / 2) / size)

    def was_late(self, ack_wait: float, now: float) -> None:
        """A message came again that this node had, although its `ack_wait` covers the estimate."""
        self._at_least, self._at_least_until = 2 * ack_wait, now + LATE_FOR_S

    def wait(self, credit: int, now: float) -> float:
        """Seconds of `ack_wait` that this link needs while `credit` messages may be on it."""
        wanted = link_wait(self.round_trip, self.transfer, credit)
        return max(wanted, self._at_least) if now < self._at_least_until else wanted

    def credit(self, holding: float) -> int | None:
        """Messages that keep the link busy, if it is slow (`link_credit`). holding: seconds."""
        return link_credit(self.round_trip, self.transfer, holding)
