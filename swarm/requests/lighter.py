"""When a version's lighter model answers in its place: pure decisions.

A version that names a lighter model is asked first, as always. So much of the budget is kept free
that the lighter one can still answer. It is asked where the version's request has ended by then
without an answer, for a reason that another model need not share: too late, no node, overload.
"""

from __future__ import annotations

from swarm.errors import Status
from swarm.model import ModelInfo

LIGHTER_ANSWERS = frozenset(
    {Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED}
)  # outcomes in whose place a lighter model answers

# Of a budget, what is kept free for the lighter model. All times are seconds.
TIMES_P99 = 2.0  # so many times its 99th percentile
ROOM = 0.002  # and this for the way
LEAST = 0.010
MOST_SHARE = 0.5  # of the budget: the version itself has the rest
BELIEVED_FROM = 20  # answers from which a percentile is believed
UNKNOWN_SHARE, MOST_UNKNOWN = 0.25, 0.5  # of the budget, and at most, before that


def may_degrade(info: ModelInfo, allowed: bool | None) -> bool:
    """Whether a request's answer may be a lighter model's. allowed: as its requester says; None: as
    the version's owner says."""
    if info.lighter is None:
        return False
    return info.lighter.degrades if allowed is None else allowed


def kept_free(budget: float, p99: float, answers: int) -> float:
    """Seconds of a budget that are kept free for the lighter model. p99: its usual latency, of so
    many answers."""
    if answers < BELIEVED_FROM:
        return max(0.0, min(UNKNOWN_SHARE * budget, MOST_UNKNOWN))
    return max(0.0, min(MOST_SHARE * budget, max(LEAST, TIMES_P99 * p99 + ROOM)))


def is_replaced(status: Status, remaining: float) -> bool:
    """Whether the lighter model is asked behind this outcome. remaining: seconds of the budget."""
    return status in LIGHTER_ANSWERS and remaining > 0
