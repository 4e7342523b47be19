"""Budgets for attempts beyond the first, as fractions of recent traffic.

When everything fails, retries multiply the load that made it fail. A budget lets a few failures be
retried at once and a collapse not at all (Finagle's `RetryBudget`; gRPC's `retryThrottling`, A6).

A hedge asks a second node when the first is slower than usual. Deferring it until the 95th
percentile has passed cuts the tail and adds about 5 % of load (Dean, Barroso: "The Tail at Scale",
CACM 2013). Its budget keeps the load at that when everything is slow, which is when hedging would
do harm.
"""

from swarm.flow.window import SlidingCount

MIN_DELAY_S = 0.001  # no hedge comes earlier: a p95 of microseconds would hedge noise


class RetryBudget:
    """Grants at most `ratio * requests + min_per_s * window_s` retries in any window.

    ratio: retries granted per request; 0.1 adds at most a tenth to the load.
    min_per_s: retries a second granted whatever the traffic, so that a quiet client may retry.
        They may be spent at once: a burst of `min_per_s * window_s`.
    window_s: seconds of traffic that count; longer allows a larger burst after busy times.
    """

    def __init__(self, ratio: float = 0.1, min_per_s: float = 1.0, window_s: float = 10.0) -> None:
        self._ratio = ratio
        self._reserve = min_per_s * window_s
        self._requests = SlidingCount(window_s)
        self._retries = SlidingCount(window_s)

    def on_requests(self, count: int, now: float) -> None:
        """Count `count` first attempts (never retries) at `now` (seconds).

        A requester may count those of a whole second at once: the window forgets by seconds.
        """
        self._requests.add(count, now)

    def has_retry(self, now: float) -> bool:
        """Whether one retry may be made; where not, fail at once, do not wait for one."""
        earned = self._ratio * self._requests.total(now) + self._reserve
        return earned - self._retries.total(now) >= 1.0 - 1e-9

    def try_retry(self, now: float) -> bool:
        """Take one retry; False where the budget is spent."""
        if not self.has_retry(now):
            return False
        self._retries.add(1, now)
        return True


class Hedger:
    """Decides, for one kind of request, when a second copy is sent.

    fraction: hedges granted per request, 0..1; the most extra load.
    min_samples: latencies observed below which the percentile is not believed.
    """

    def __init__(self, fraction: float = 0.05, *, min_samples: int = 20) -> None:
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
