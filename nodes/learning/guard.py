"""Whether learned weights may serve, and which neighbour does harm: decisions, without a clock.

All of them go by samples that the node holds out. A node may hold few, and of few classes, so
each threshold leaves room for the error of a small sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

# Accuracies are shares, 0 to 1; rounds are the learner's.
MARGIN = 0.05  # accuracy that a new weight version may lose on one node's samples
LEAST_HELD_OUT = 8  # samples; fewer judge nobody
FAR_WORSE = 0.35  # accuracy below the neighbourhood's median that does harm
NEAR = 0.1  # accuracy below the median that passes for as good
GOOD_MEDIAN = 0.7  # accuracy below which the neighbourhood itself is still learning
IN_A_ROW = 5  # rounds in which a neighbour that was good is far worse before it is refused
GRACE = 100  # rounds in a row that a neighbour may be far worse before it was ever good
CALM = 10  # rounds of a good neighbourhood before this node's own weights are judged
AGAIN_AFTER = 20  # rounds between two reversions


def tolerance(samples: int) -> float:
    """The loss of accuracy that passes: the margin, and two standard errors of a small sample
    (at an accuracy of one half, where the error is largest)."""
    return MARGIN + 2 * math.sqrt(0.25 / max(1, samples)) if samples else 1.0


def may_serve(present: float, new: float, samples: int) -> bool:
    """Whether weights of held-out accuracy `new` may follow those of `present`, both measured on
    the same `samples`. With too few samples there is no judgement, and they may."""
    return samples < LEAST_HELD_OUT or new >= present - tolerance(samples)


@dataclass(frozen=True, slots=True)
class WeightsVerdict:
    """refuse: neighbours to take nothing more from. revert: whether this node's own weights have
    become so bad that it goes back to the last good ones. good: whether they are good ones."""

    refuse: tuple[str, ...] = ()
    revert: bool = False
    good: bool = False


@dataclass
class _Neighbour:
    was_good: bool = False
    bad_rounds: int = 0


@dataclass
class LearningGuard:
    """Judges, once a round, this node's own weights and its copies of the neighbours'.

    A neighbour that has only learned other classes looks bad at first, as all do, and this node's
    own weights lose some accuracy on its own classes when they learn of others. So the
    neighbourhood's median says whether there is enough to compare with, and a neighbour is
    refused soon only where it was as good as the others before.
    """

    _neighbours: dict[str, _Neighbour] = field(default_factory=dict)
    _calm: int = 0
    _best: float = 0.0
    _since_reverted: int = AGAIN_AFTER

    def judge(self, own: float, neighbours: Mapping[str, float], samples: int) -> WeightsVerdict:
        """own, neighbours: held-out accuracies of this node's weights after the round, and of its
        copies of theirs, all on the same `samples`."""
        if samples < LEAST_HELD_OUT or not neighbours:
            return WeightsVerdict()
        usual = median([own, *neighbours.values()])
        for name in set(self._neighbours) - set(neighbours):
            del self._neighbours[name]
        refuse = [name for name, acc in neighbours.items() if self._note(name, acc, usual)]
        self._calm = self._calm + 1 if usual >= GOOD_MEDIAN else 0
        self._since_reverted += 1
        if self._calm < CALM:
            return WeightsVerdict(tuple(refuse))
        self._best = max(self._best, own)
        if may_serve(self._best, own, samples):
            return WeightsVerdict(tuple(refuse), good=True)
        if self._since_reverted < AGAIN_AFTER:
            return WeightsVerdict(tuple(refuse))
        self._since_reverted = 0
        return WeightsVerdict(tuple(refuse), revert=True)

    def _note(self, name: str, accuracy: float, usual: float) -> bool:
        """Notes one round of a neighbour; whether it was far worse for too long."""
        known = self._neighbours.setdefault(name, _Neighbour())
        if usual < GOOD_MEDIAN or accuracy >= usual - FAR_WORSE:
            known.bad_rounds = 0
            known.was_good |= usual >= GOOD_MEDIAN and accuracy >= usual - NEAR
            return False
        known.bad_rounds += 1
        return known.bad_rounds >= (IN_A_ROW if known.was_good else GRACE)

    def forget(self) -> None:
        """What is learned has changed: judge anew."""
        self._neighbours.clear()
        self._calm, self._best = 0, 0.0
