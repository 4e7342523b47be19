"""Flow control: budgets, retries, breakers, quotas, batches, hedges, admission, latency, watchdog.

Pure: each takes `now` (seconds, any monotonic clock) and, where it rolls dice, a `random.Random`.
"""

from swarm.flow.ack_wait import ack_wait_for
from swarm.flow.admission import Admission, Decision
from swarm.flow.backoff import Backoff
from swarm.flow.batching import (
    ArrivalRate,
    BatchLimit,
    Group,
    Run,
    Wait,
    decide,
    split_on_failure,
)
from swarm.flow.breaker import Breaker, BreakerState, Transition
from swarm.flow.bucket import Quotas, TokenBucket
from swarm.flow.budget import should_start
from swarm.flow.hedge import Hedger
from swarm.flow.latency import LatencyWindow
from swarm.flow.retry import RetryBudget
from swarm.flow.usual import Usual
from swarm.flow.watchdog import Action, Verdict, Watchdog
from swarm.flow.window import SlidingCount

__all__ = [
    "Action",
    "Admission",
    "ArrivalRate",
    "Backoff",
    "BatchLimit",
    "Breaker",
    "BreakerState",
    "Decision",
    "Group",
    "Hedger",
    "LatencyWindow",
    "Quotas",
    "RetryBudget",
    "Run",
    "SlidingCount",
    "TokenBucket",
    "Transition",
    "Usual",
    "Verdict",
    "Wait",
    "Watchdog",
    "ack_wait_for",
    "decide",
    "should_start",
    "split_on_failure",
]
