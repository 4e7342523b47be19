"""Hedged requests: ask a second node when the first is slower than usual.

Deferring the second request until the 95th percentile has passed cuts the tail and adds about 5 %
of load (Dean, Barroso: "The Tail at Scale", CACM 2013). A budget holds it there when everything is
slow, which is when hedging would do harm.
"""

from swarm.requests.retry import RetryBudget

MIN_DELAY_S = 0.001  # no hedge comes earlier: a p95 of microseconds would hedge noise


class Hedger:
    """Decides, for one kind of request, when a second copy is sent.

    fraction: hedges granted per request, 0..1; the most extra load.
    min_samples: latencies observed below which the percentile is not believed.
    Raises ValueError where fraction is outside 0..1.
    """

    def __init__(self, fraction: float = 0.05, *, min_samples: int = 20) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"0 <= fraction <= 1: {fraction}")
        self._budget = RetryBudget(fraction, min_per_s=0.0, window_s=10.0)
        self._min_samples = min_samples

    def on_request(self, now: float) -> None:
        """Count a first copy sent at `now` (seconds)."""
        self._budget.on_requests(1, now)

    def delay_s(
        self, percentile_s: float, samples: int, remaining_s: float, p50_s: float
    ) -> float | None:
        """Seconds after which to consider a hedge, or None where none could help.

        percentile_s: the percentile after which a request counts as slow, in seconds (p95).
        samples: how many latencies it was taken from. p50_s: seconds that a copy usually takes: the
        hedge is pointless unless one fits what is left of the budget (`remaining_s`, seconds).
        """
        delay = max(MIN_DELAY_S, percentile_s)
        if samples < self._min_samples or delay + p50_s > remaining_s:
            return None
        return delay

    def try_hedge(self, now: float) -> bool:
        """Take one hedge from the budget at `now` (seconds), the delay having passed."""
        return self._budget.try_retry(now)
