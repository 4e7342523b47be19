"""How far others may move this node: bounds on what they send, and on what is taken of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Set

REMEMBERED = 32  # lengths of deltas from which the usual one is taken
LEAST_KNOWN = 8  # lengths that must be known before the usual one counts
TIMES_USUAL = 10.0  # times the usual length that a delta may have
FAR = 3.0  # times the usual distance; simulated, honest nodes stay below 2.2
LEARNING = 0.1  # weight of the last mixing in the moving average
RATIO_MOST = 100.0  # so that a neighbour that was far away once is forgiven within 60 mixings


def clip_radius(pulls: Mapping[str, tuple[float, float]], hostile: float) -> float:
    """The length to which each difference to a neighbour is clipped.

    pulls: weight and length of the difference, by neighbour. hostile: the share of the neighbours'
    weight that may lie, above 0. ClippedGossip (He, Karimireddy, Jaggi, "Byzantine-Robust
    Decentralized Learning via ClippedGossip", arXiv 2202.01545), with the radius that its section
    on choosing it gives for unknown variances: with d the hostile weight and S the nearest
    neighbours that are left when the farthest ones of weight d are taken away,

        radius² = (1 / d) * sum over S of  w_j |x_j - x_i|²

    It never exceeds the largest difference within S where S has weight: a lone honest neighbour
    is not outshone because its weight is large beside d.
    """
    total = sum(weight for weight, _ in pulls.values())
    lying = hostile * total
    honest = total - lying
    squares, largest = 0.0, 0.0
    for weight, length in sorted(pulls.values(), key=lambda pull: pull[1]):
        counted = min(weight, honest)
        if counted <= 1e-12:
            break
        honest -= counted
        squares += counted * length * length
        largest = length
    return min(largest, math.sqrt(squares / lying)) if lying > 0 else math.inf


class Doubts:
    """Which neighbours are too far away to be mixed with.

    Each mixing compares every neighbour's distance with the usual one, the mean of the nearest
    neighbours when as many of the farthest are left out as may be hostile (one at least). Whose
    distance is more than `FAR` times the usual one, in the moving average, is doubted: this node
    goes on to follow it, and mixes with it again once it has come near. So an honest node that
    lags behind loses no more than time. It takes more honest neighbours than hostile ones, hence
    three at least.

    Clipping alone does not hold a neighbour that pulls in one direction for ever: where the data
    of honest nodes differ, their usual distance is a long way each round.
    """

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}

    def doubted(self) -> Set[str]:
        """The neighbours that are doubted at present."""
        return {peer for peer, score in self._scores.items() if score > FAR}

    def observe(self, lengths: Mapping[str, float], hostile: float) -> None:
        """Compare the distances of all neighbours, of which a share `hostile` may lie."""
        self._scores = {peer: self._scores.get(peer, 1.0) for peer in lengths}
        if len(lengths) < 2:
            return
        ordered = sorted(lengths.values())
        near = ordered[: max(1, len(ordered) - max(1, round(hostile * len(ordered))))]
        usual = sum(near) / len(near)
        for peer, length in lengths.items():
            ratio = length / usual if usual > 0 else 1.0 if length == 0 else RATIO_MOST
            # A length that is not finite is far away.
            ratio = min(ratio, RATIO_MOST) if ratio == ratio else RATIO_MOST
            self._scores[peer] += LEARNING * (ratio - self._scores[peer])


class NormBound:
    """Whether the length of a delta is possible, by the lengths of those that were taken lately.

    most: an absolute bound. The usual length is the median of the last lengths of all senders, our
    own among them: one liar among several neighbours does not move it.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._lengths: deque[float] = deque(maxlen=REMEMBERED)

    def limit(self) -> float:
        """The largest length that is possible at present."""
        if len(self._lengths) < LEAST_KNOWN:
            return self._most
        usual = sorted(self._lengths)[len(self._lengths) // 2]
        return min(self._most, TIMES_USUAL * usual) if usual > 0 else self._most

    def note(self, length: float) -> None:
        """A delta of this length was sent or taken."""
        self._lengths.append(length)
