"""What a guard says of what was observed: good, bad, or nothing yet.

A breach must be no accident: of n observations, each bad with the allowed probability, so many or
more would be bad less than once in a thousand times (the binomial tail). A guard is good when no
larger share was bad than it allows. Between the two the rollout waits where it is.

Below the least number of observations, those that lack count as good ones: a breach that no later
observation could undo needs no waiting.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, lgamma, log, log1p
from typing import NamedTuple

from swarm.rollout.guards import RolloutGuard

ACCIDENT = 0.001  # probability below which so many bad observations are no accident
EXACT_UP_TO = 4096  # observations whose tail is summed; of more it is bounded, in one step
NOTHING = 40.0  # a term smaller than another by e to this power adds nothing to a sum


class GuardCounts(NamedTuple):
    """Observations of one guard, and how many of them were bad."""

    n: int = 0
    bad: int = 0

    def __add__(self, other: object) -> GuardCounts:  # of counts, not of tuples
        if not isinstance(other, GuardCounts):
            return NotImplemented
        return GuardCounts(self.n + other.n, self.bad + other.bad)

    @property
    def share(self) -> float:
        """The bad ones' share, 0..1."""
        return self.bad / self.n if self.n else 0.0


class Verdict(StrEnum):
    FEW = "few"  # observations: nothing can be said
    GOOD = "good"
    DOUBT = "doubt"  # worse than allowed, and it may be an accident
    BAD = "bad"


def verdict(guard: RolloutGuard, total: GuardCounts, recent: GuardCounts, least: int) -> Verdict:
    """What the guard says. total: since the rollout began; recent: of the last seconds, in which a
    version that turns bad late shows first. least: observations below which nothing good is said,
    and bad only if it stays bad whatever else is observed."""
    if any(is_breach(guard, seen, least) for seen in (total, recent)):
        return Verdict.BAD
    if total.n < least:
        return Verdict.FEW
    worse = [seen for seen in (total, recent) if seen.n >= least and seen.share > guard.allowed]
    return Verdict.DOUBT if worse else Verdict.GOOD


def is_breach(guard: RolloutGuard, seen: GuardCounts, least: int) -> bool:
    """Whether so many bad observations are no accident, were those that lack to `least` good."""
    counted = GuardCounts(max(seen.n, least), seen.bad)
    if counted.share <= guard.allowed:
        return False
    return tail(counted.n, counted.bad, guard.allowed) < ACCIDENT


def tail(n: int, bad: int, p: float) -> float:
    """The probability of `bad` or more of `n`, each with probability `p`: exact for up to
    `EXACT_UP_TO` observations, for more an upper bound, whose work does not depend on n."""
    if bad <= 0:
        return 1.0
    if p <= 0.0 or bad > n:
        return 0.0
    if p >= 1.0:
        return 1.0
    return _bound(n, bad, p) if n > EXACT_UP_TO else _sum(n, bad, p)


def _sum(n: int, bad: int, p: float) -> float:
    # From the largest term downwards; above the mean each next one is smaller, by a growing factor.
    if bad <= n * p:
        return 1.0 - sum(exp(_log_term(n, k, p)) for k in range(bad))
    total, first = 0.0, _log_term(n, bad, p)
    for k in range(bad, n + 1):
        term = _log_term(n, k, p)
        total += exp(term)
        if term < first - NOTHING:
            break
    return min(1.0, total)


def _bound(n: int, bad: int, p: float) -> float:
    """Chernoff's bound exp(-n KL(bad/n, p)): W. Hoeffding, "Probability inequalities for sums of
    bounded random variables", 1963, theorem 1. It holds for every n."""
    above = bad - n * p
    if above <= 0:
        return 1.0
    # By log1p of the distances: a difference of logarithms would lose all digits for a large n.
    divergence = bad * log1p(above / (n * p))
    if bad < n:
        divergence += (n - bad) * log1p(-above / (n * (1.0 - p)))
    return exp(-max(0.0, divergence))


def _log_term(n: int, k: int, p: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return ways + k * log(p) + (n - k) * log1p(-p)


def worst(verdicts: list[Verdict]) -> Verdict:
    """What several guards say together; GOOD where there are none."""
    for one in (Verdict.BAD, Verdict.DOUBT, Verdict.FEW):
        if one in verdicts:
            return one
    return Verdict.GOOD
