"""The threshold of a `choose`, fitted on labelled samples for an accuracy or a cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shards.compose.errors import CompositionError

Z = 1.96  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True)
class ChoiceScores:
    """What became of labelled samples by each of the two ways of a `choose`.

    measured: float64 [n], by what is chosen; NaN is neither below nor above. then, otherwise: bool
    [n], whether that way's answer is right. then_ms, otherwise_ms: what an answer of it takes.
    """

    measured: np.ndarray
    then: np.ndarray
    otherwise: np.ndarray
    then_ms: float
    otherwise_ms: float

    def __len__(self) -> int:
        return len(self.measured)

    def only(self, places: np.ndarray) -> ChoiceScores:
        """Those at some places."""
        of = (self.measured[places], self.then[places], self.otherwise[places])
        return ChoiceScores(*of, self.then_ms, self.otherwise_ms)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a threshold gives. share: of the samples that go by `then`. right: how many answers
    are. cost_ms: of a request, in the mean."""

    threshold: float
    share: float
    right: int
    accuracy: float
    cost_ms: float


def curve(scores: ChoiceScores, *, below: bool) -> list[CurvePoint]:
    """A point for each set of samples that some threshold sends by `then`, from none to all: the
    share never falls. A threshold stands in the middle between two samples.

    below: `then` is taken where the measure is below the threshold, else where it is above. Raises
    CompositionError where there are no samples.
    """
    if not len(scores):
        raise CompositionError("", "there are no samples to fit on")
    sign = 1.0 if below else -1.0
    measured = sign * scores.measured
    finite = np.unique(measured[np.isfinite(measured)])
    return [point(scores, sign * each, below=below) for each in _thresholds(finite)]


def _thresholds(values: np.ndarray) -> list[float]:
    """Between finite values, in rising order: below the first are none, below the last are all."""
    if not len(values):
        return [0.0]
    middles = values[:-1] / 2 + values[1:] / 2
    # Two values may have none between them: the upper one is not below itself.
    fits = (values[:-1] < middles) & (middles <= values[1:])
    found = [float(values[0]), *map(float, np.where(fits, middles, values[1:]))]
    beyond = math.nextafter(float(values[-1]), math.inf)
    return [*found, beyond] if math.isfinite(beyond) else found


def point(scores: ChoiceScores, threshold: float, *, below: bool) -> CurvePoint:
    """What a threshold gives on samples, of which there are some."""
    takes = scores.measured < threshold if below else scores.measured > threshold
    right = int(np.where(takes, scores.then, scores.otherwise).sum())
    share = int(takes.sum()) / len(scores)
    cost = share * scores.then_ms + (1 - share) * scores.otherwise_ms
    return CurvePoint(threshold, share, right, right / len(scores), cost)


def cheapest(points: Sequence[CurvePoint], accuracy: float, part: str = "") -> CurvePoint:
    """The cheapest with this accuracy (0 to 1) at least; of equally cheap ones the most accurate.
    Raises CompositionError, which names the best that can be had."""
    enough = [each for each in points if each.accuracy >= accuracy]
    if not enough:
        best = most_accurate(points, math.inf)
        raise CompositionError(
            part, f"no threshold reaches accuracy {accuracy:g} on these samples: {_best(best)}"
        )
    return min(enough, key=lambda each: (each.cost_ms, -each.right, each.share))


def most_accurate(points: Sequence[CurvePoint], cost_ms: float, part: str = "") -> CurvePoint:
    """The most accurate of this cost at most; of equally accurate ones the cheapest. Raises
    CompositionError, which names the best that can be had."""
    cheap = [each for each in points if each.cost_ms <= cost_ms]
    if not cheap:
        best = min(points, key=lambda each: each.cost_ms)
        raise CompositionError(part, f"no threshold costs {cost_ms:g} ms or less: {_best(best)}")
    return min(cheap, key=lambda each: (-each.right, each.cost_ms, each.share))


def _best(best: CurvePoint) -> str:
    return (
        f"the best is {best.accuracy:.4f} for {best.cost_ms:.3g} ms, by threshold "
        f"{best.threshold:.6g} ({best.share:.0%} go by `then`)"
    )


def wilson(right: int, of: int) -> tuple[float, float]:
    """The interval that holds the true share with 95 % confidence, [0, 1] of nothing.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference,
    JASA 22 (1927), 209-212.
    """
    if not of:
        return 0.0, 1.0
    share, z2 = right / of, Z * Z
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    reach = Z / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def set_aside(count: int, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places to fit on, one at least, and those that are held out, at random."""
    order = np.random.default_rng(seed).permutation(count)
    fitted = max(1, count - round(count * share))
    return order[:fitted], order[fitted:]
