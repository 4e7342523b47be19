"""A round of averaging without a leader: for a small fleet, where everybody hears everybody.

Each node sends its whole vector, numbered by the round. A round ends at a node when it has the
vectors of all participants, or when its time is over; then the node takes the mean of what it has.
Nodes that have the same vectors get the same bits. A vector that one node lacks makes its mean
another one, which the next round repairs.

Once more than half of the others are in a later round, nobody is waited for any more. A node that
has not even half of the present round's vectors then is late: it takes the middle of the others'
later ones, entry by entry, and goes on with their round. Of each node at most one vector of a later
round is kept, so that one that runs ahead, or lies, takes nobody else's place.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from swarm.learning.consensus.layout import Vector, mean_of
from swarm.learning.consensus.limits import clip_radius
from swarm.learning.consensus.refusals import Reason, RefusedDelta

FARTHEST = 1 << 20  # rounds that a message may be ahead of this node's


class AverageNode:
    """One node's part. Vectors are float32 and of one size. x: the parameters; round: the one that
    is open or comes next. timeout: seconds after which a round ends without those who are late."""

    def __init__(self, node: str, start: Vector, timeout: float) -> None:
        self.x = start.astype(np.float32, copy=True)
        self.round = 1
        self._node = node
        self._timeout = timeout
        self._sent = self.x  # our vector of the present round, once it is open
        self._heard: dict[str, Vector] = {}  # the others' vectors of the present round
        self._ahead: dict[str, tuple[int, Vector]] = {}
        self._opened: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether this node has sent its vector of the present round."""
        return self._opened is not None

    def open(self, now: float) -> Vector:
        """Open the present round; returns the vector to send. now: seconds."""
        self._opened = now
        self._sent = self.x.copy()
        return self._sent

    def receive(self, peer: str, number: int, vector: Vector) -> None:
        """Another node's vector of a round. Raises `RefusedDelta` with `REPLAYED` for a round that
        is over, or a second vector of one round, and with `OUT_OF_RANGE` for one far ahead."""
        known = self._ahead.get(peer, (0, None))[0]
        if number < self.round or number <= known or (number == self.round and peer in self._heard):
            raise RefusedDelta(Reason.REPLAYED, f"round {number} of {peer}, now is {self.round}")
        if number > self.round + FARTHEST:
            raise RefusedDelta(Reason.OUT_OF_RANGE, f"round {number} is too far ahead")
        kept = vector.astype(np.float32, copy=True)
        if number == self.round:
            self._heard[peer] = kept
        else:
            self._ahead[peer] = (number, kept)

    def close(self, participants: Set[str], now: float, hostile: float = 0.0) -> list[str]:
        """End the present round where all participants are heard, or it lasts too long; returns
        whose vectors the mean is of, [] while the round goes on.

        hostile: the share of the others (0..1) that may lie; above 0 each difference to this node's
        vector is clipped (`limits.clip_radius`).
        """
        if self._opened is None:
            return []
        others = participants - {self._node}
        later = self._later_round(others)
        present = sorted(others & self._heard.keys())
        if later is not None and 2 * len(present) <= len(others):
            return self._go_to(later, others)
        waited = later is not None or now - self._opened >= self._timeout
        if len(present) < len(others) and not waited:
            return []
        mean = self._mean(present, hostile)
        self._finish(mean, self.round + 1)
        return sorted([*present, self._node])

    def _later_round(self, others: Set[str]) -> int | None:
        """The latest round that more than half of the others are in, beyond the present one."""
        numbers = sorted((n for p, (n, _) in self._ahead.items() if p in others), reverse=True)
        majority = len(others) // 2 + 1
        return numbers[majority - 1] if len(numbers) >= majority else None

    def _go_to(self, number: int, others: Set[str]) -> list[str]:
        """Go on with a later round from the middle of those who are in it, or beyond."""
        there = sorted(p for p, (n, _) in self._ahead.items() if n >= number and p in others)
        middle = np.median([self._ahead[peer][1] for peer in there], axis=0)
        self._finish(middle.astype(np.float32), number)
        return there

    def _mean(self, present: list[str], hostile: float) -> Vector:
        vectors = {peer: self._heard[peer] for peer in present}
        if hostile <= 0 or not vectors:
            everything = vectors | {self._node: self._sent}
            return mean_of([everything[name] for name in sorted(everything)])
        pulls = {peer: vector - self._sent for peer, vector in vectors.items()}
        lengths = {peer: float(np.linalg.norm(pull)) for peer, pull in pulls.items()}
        radius = clip_radius({peer: (1.0, length) for peer, length in lengths.items()}, hostile)
        mean = self._sent.astype(np.float64)
        for peer in present:
            shrink = min(1.0, radius / lengths[peer]) if lengths[peer] > 0 else 1.0
            if math.isfinite(shrink):
                mean += shrink * pulls[peer] / (len(present) + 1)
        return mean.astype(np.float32)

    def _finish(self, mean: Vector, following: int) -> None:
        """Take the mean, and the local updates since the round was opened; go to another round."""
        self.x = mean + (self.x - self._sent)
        self.round = following
        self._opened = None
        self._heard = {p: v for p, (number, v) in self._ahead.items() if number == following}
        self._ahead = {p: a for p, a in self._ahead.items() if a[0] > following}

    def update(self, change: Vector) -> None:
        """Move by a local update. Raises `ValueError`, and does nothing, for one that is not
        finite."""
        if not np.isfinite(change).all():
            raise ValueError("a local update that is not finite")
        self.x += change

    def mean_of_heard(self) -> Vector:
        """The mean of this node's parameters and the others' vectors of the present round."""
        return mean_of([self.x, *(self._heard[peer] for peer in sorted(self._heard))])
