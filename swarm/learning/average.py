"""A round of averaging without a leader: for a small fleet, where everybody hears everybody.

Each node sends its whole vector, numbered by the round. A round ends at a node when it has the
vectors of all participants, or when its time is over; then the node takes the mean of what it has.
Nodes that have the same vectors get the same bits. A vector that one node lacks makes its mean
another one, which the next round repairs. Nobody waits for a straggler twice: a node that hears of
a later round goes on with that one.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from swarm.learning.layout import Vector, mean_of
from swarm.learning.refused import Reason, Refused

FARTHEST = 1 << 20  # rounds that a message may be ahead of this node's


class AverageNode:
    """One node's part. Vectors are float32 and of one size. x: the parameters; round: the one that
    is open or comes next. timeout: seconds after which a round ends without those who are late."""

    def __init__(self, node: str, start: Vector, timeout: float) -> None:
        self.x = start.astype(np.float32, copy=True)
        self.round = 1
        self._node = node
        self._timeout = timeout
        self._heard: dict[int, dict[str, Vector]] = {}
        self._opened: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether this node has sent its vector of the present round."""
        return self._opened is not None

    def open(self, now: float) -> Vector:
        """Open the present round; returns the vector to send. now: seconds."""
        self._opened = now
        self._heard.setdefault(self.round, {})[self._node] = self.x.copy()
        return self.x.copy()

    def receive(self, peer: str, number: int, vector: Vector) -> None:
        """Another node's vector of a round. Raises `Refused` with `REPLAYED` for a round that is
        over, or a second vector of one round."""
        if number < self.round or peer in self._heard.get(number, {}):
            raise Refused(Reason.REPLAYED, f"round {number} of {peer}, now is {self.round}")
        if number > self.round + FARTHEST:
            raise Refused(Reason.OUT_OF_RANGE, f"round {number} is too far ahead")
        # Of the rounds ahead only the latest is of use.
        ahead = max((n for n in self._heard if n > self.round), default=0)
        if number > self.round and number < ahead:
            raise Refused(Reason.REPLAYED, f"round {number}, others are in {ahead}")
        if number > ahead > self.round:
            del self._heard[ahead]
        self._heard.setdefault(number, {})[peer] = vector.astype(np.float32, copy=True)

    def close(self, participants: Set[str], now: float) -> list[str]:
        """End the present round where all participants are heard, or it lasts too long; returns
        whose vectors the mean is of, [] while the round goes on."""
        if self._opened is None:
            return []
        heard = self._heard.get(self.round, {})
        present = sorted((participants | {self._node}) & heard.keys())
        late = now - self._opened >= self._timeout
        later = any(number > self.round for number in self._heard)
        if len(present) < len(participants | {self._node}) and not (late or later):
            return []
        vectors = [heard[name] for name in present]
        mean = mean_of(vectors)
        # Local updates that came after the round was opened are kept.
        self.x = self.x - heard[self._node] + mean
        del self._heard[self.round]
        self._opened = None
        self.round = max([self.round + 1, *self._heard])
        return present

    def update(self, change: Vector) -> None:
        """Move by a local update. Raises `ValueError`, and does nothing, for one that is not
        finite."""
        if not np.isfinite(change).all():
            raise ValueError("a local update that is not finite")
        self.x += change

    def mean_of_heard(self) -> Vector:
        """The mean of the vectors of the present round so far, or this node's own."""
        vectors = list(self._heard.get(self.round, {}).values()) or [self.x]
        return mean_of(vectors)
