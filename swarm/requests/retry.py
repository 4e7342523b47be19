"""A budget for retries, as a fraction of recent traffic.

When everything fails, retries multiply the load that made it fail. A budget lets a few failures be
retried at once and a collapse not at all (Finagle's `RetryBudget`; gRPC's `retryThrottling`, A6).
"""

from swarm.flow.window import SlidingCount


class RetryBudget:
    """Grants at most `ratio * requests + min_per_s * window_s` retries in any window.

    ratio: retries granted per request; 0.1 adds at most a tenth to the load.
    min_per_s: retries a second granted whatever the traffic, so that a quiet client may retry.
        They may be spent at once: a burst of `min_per_s * window_s`.
    window_s: seconds of traffic that count; longer allows a larger burst after busy times.
    Raises ValueError for a negative ratio or min_per_s.
    """

    def __init__(self, ratio: float = 0.1, min_per_s: float = 1.0, window_s: float = 10.0) -> None:
        if not (ratio >= 0 and min_per_s >= 0):
            raise ValueError(f"negative: {ratio=}, {min_per_s=}")
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
