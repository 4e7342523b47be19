"""Whether learned weights may serve, and which neighbour does harm: decisions, without a clock.

All of them go by samples that the node holds out. A node may hold few, and of few classes, so
each threshold leaves room for the error of a small sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

MARGIN = 0.05  # of accuracy, that a new weight version may lose on one node's samples
LEAST_HELD_OUT = 8  # samples; fewer judge nobody
FAR_WORSE = 0.35  # of accuracy, below the neighbourhood's median
GOOD_MEDIAN = 0.7  # accuracy; below it the neighbourhood itself is still learning
IN_A_ROW = 5  # rounds in which a neighbour is far worse before it is refused


def tolerance(samples: int, margin: float = MARGIN) -> float:
    """The loss of accuracy that passes: the margin, and two standard errors of a small sample
    (at an accuracy of one half, where the error is largest)."""
    return margin + 2 * math.sqrt(0.25 / max(1, samples)) if samples else 1.0


def may_serve(present: float, new: float, samples: int) -> bool:
    """Whether weights of held-out accuracy `new` may follow those of `present`, both measured on
    the same `samples`. With too few samples there is no judgement, and they may."""
    return samples < LEAST_HELD_OUT or new >= present - tolerance(samples)


@dataclass
class NeighbourGuard:
    """Finds neighbours whose weights stay far worse than the neighbourhood's.

    `judge` is called once a round. A neighbour that only learned other classes looks bad at first,
    as all do: the median says whether the neighbourhood has learned enough to compare.
    """

    _rounds: dict[str, int] = field(default_factory=dict)

    def judge(self, own: float, neighbours: Mapping[str, float], samples: int) -> list[str]:
        """Neighbours to refuse from now on. own, neighbours: held-out accuracies of this node's
        weights and of its copies of theirs."""
        if samples < LEAST_HELD_OUT:
            return []
        # The own weights count as one more voice: they have learned just these classes.
        usual = median([own, *neighbours.values()])
        refused = []
        for name, accuracy in neighbours.items():
            bad = usual >= GOOD_MEDIAN and accuracy < usual - FAR_WORSE
            self._rounds[name] = self._rounds.get(name, 0) + 1 if bad else 0
            if self._rounds[name] >= IN_A_ROW:
                refused.append(name)
        for name in set(self._rounds) - set(neighbours):
            del self._rounds[name]
        return refused
