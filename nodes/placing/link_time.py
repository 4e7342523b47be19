"""How long messages take to the mesh and back: learned from the requests that went. Pure.

The time on the way of a request is what its answer does not account for: the whole time, without
the stages' own figures of queueing and computing. It is taken as a round trip, a constant, and a
time for each byte; the codec that the link makes pay is part of the latter.
"""

from __future__ import annotations

from collections import deque
from math import inf

VISIBLE = 4096  # bytes from which a request says something about the time of a byte
FOLLOWS = 0.6  # of a new figure against the known one
FOLLOWS_OLD = 0.85  # the same, where the known one is old
OLD_S = 5.0  # seconds
LATEST = 3  # of which the middle one counts: one message that is held up says nothing of the others
FASTEST = 1e-10  # seconds a byte
MOST_CONSTANT_S = 1.0


class LinkTime:
    """Times in seconds. round_trip: of a small message, as the link measures it."""

    __slots__ = ("_at", "_constant", "_latest", "_per_byte", "round_trip")

    def __init__(self) -> None:
        self.round_trip = 0.0
        self._constant = 0.0
        self._per_byte = 0.0  # 0.0 while it is not known
        self._at = -inf  # when a request last told of it
        self._latest: deque[float] = deque(maxlen=LATEST)  # seconds a byte

    def prior(self, rate: float) -> None:
        """Bytes a second by which to go until a request has told."""
        if self._at == -inf:
            self._per_byte = 1 / rate if rate > 0 else 0.0

    def of(self, size: int) -> float:
        """Seconds of a request with `size` bytes, there and back."""
        return self.round_trip + self._constant + self._per_byte * size

    def took(self, size: int, seconds: float, now: float) -> None:
        """A request with `size` bytes was on its way for so long."""
        is_old = now - self._at > OLD_S
        follows = FOLLOWS_OLD if is_old else FOLLOWS
        if is_old:
            self._latest.clear()
        self._at = now
        rest = max(0.0, seconds - self.round_trip)
        if size < VISIBLE:
            beyond = min(MOST_CONSTANT_S, max(0.0, rest - self._per_byte * size))
            self._constant += follows * (beyond - self._constant)
            return
        self._latest.append(max(FASTEST, (rest - self._constant) / size))
        per_byte = sorted(self._latest)[(len(self._latest) - 1) // 2]
        if not self._per_byte:
            self._per_byte = per_byte
            return
        # By factors: links become ten times as slow, and ten times as fast.
        self._per_byte *= (per_byte / self._per_byte) ** follows
