"""What a guard says of what was observed: good, bad, or nothing yet.

A breach must be no accident: of n observations, each bad with the allowed probability, so many or
more would be bad less than once in a thousand times (the exact binomial tail). A guard is good when
no larger share was bad than it allows. Between the two the rollout waits where it is.
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, inf, lgamma, log, log1p
from typing import NamedTuple

from swarm.rollout.guards import Guard

ACCIDENT = 0.001  # probability below which so many bad observations are no accident


class Seen(NamedTuple):
    """Observations of one guard, and how many of them were bad."""

    n: int = 0
    bad: int = 0

    def __add__(self, other: object) -> Seen:  # of counts, not of tuples
        if not isinstance(other, Seen):
            return NotImplemented
        return Seen(self.n + other.n, self.bad + other.bad)

    @property
    def share(self) -> float:
        """The bad ones' share, 0..1."""
        return self.bad / self.n if self.n else 0.0


class Verdict(StrEnum):
    FEW = "few"  # observations: nothing can be said
    GOOD = "good"
    DOUBT = "doubt"  # worse than allowed, and it may be an accident
    BAD = "bad"


def verdict(guard: Guard, total: Seen, recent: Seen, least: int) -> Verdict:
    """What the guard says. total: since the rollout began; recent: of the last seconds, in which a
    version that turns bad late shows first. least: observations below which nothing is said."""
    if any(_is_breach(guard, seen, least) for seen in (total, recent)):
        return Verdict.BAD
    if total.n < least:
        return Verdict.FEW
    worse = [seen for seen in (total, recent) if seen.n >= least and seen.share > guard.allowed]
    return Verdict.DOUBT if worse else Verdict.GOOD


def _is_breach(guard: Guard, seen: Seen, least: int) -> bool:
    if seen.n < least or seen.share <= guard.allowed:
        return False
    return tail(seen.n, seen.bad, guard.allowed) < ACCIDENT


def tail(n: int, bad: int, p: float) -> float:
    """The probability of `bad` or more of `n`, each with probability `p`."""
    if bad <= 0:
        return 1.0
    if p <= 0.0 or bad > n:
        return 0.0
    if p >= 1.0:
        return 1.0
    # From the largest term downwards; above the mean each next one is smaller, by a growing factor.
    if bad <= n * p:
        return 1.0 - sum(exp(_log_term(n, k, p)) for k in range(bad))
    total, term, first = 0.0, -inf, _log_term(n, bad, p)
    for k in range(bad, n + 1):
        term = _log_term(n, k, p)
        total += exp(term)
        if term < first - 40:
            break
    return min(1.0, total)


def _log_term(n: int, k: int, p: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return ways + k * log(p) + (n - k) * log1p(-p)


def worst(verdicts: list[Verdict]) -> Verdict:
    """What several guards say together; GOOD where there are none."""
    for one in (Verdict.BAD, Verdict.DOUBT, Verdict.FEW):
        if one in verdicts:
            return one
    return Verdict.GOOD
