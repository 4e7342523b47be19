"""A budget for retries, as a fraction of recent traffic.

When everything fails, retries multiply the load that made it fail. A budget lets a few failures be
retried at once and a collapse not at all (Finagle's `RetryBudget`; gRPC's `retryThrottling`, A6).
"""

from swarm.flow.window import SlidingCount


class RetryBudget:
    """Grants at most `ratio * answered + min_per_s * window_s` retries in any window.

    ratio: retries granted per answered request; 0.1 adds at most a tenth to the load.
    min_per_s: retries a second granted whatever the traffic, so that a quiet client may retry.
        They may be spent at once: a burst of `min_per_s * window_s`.
    window_s: seconds of traffic that count; longer allows a larger burst after busy times.
    Raises ValueError for a negative ratio or min_per_s.
    """

    def __init__(self, ratio: float = 0.1, min_per_s: float = 1.0, window_s: float = 10.0) -> None:
        if not (ratio >= 0 and min_per_s >= 0):
            raise ValueError(f"negative: {ratio=}, {min_per_s=}")
        self.ratio = ratio
        self._reserve = min_per_s * window_s
        self._retries = SlidingCount(window_s)

    def balance(self, now: float, answered: int) -> float:
        """Retries that could still be granted at `now` (seconds). answered: requests that were
        answered within the last `window_s` seconds (gRPC's `retryThrottling` counts successes
        too)."""
        earned = self.ratio * answered + self._reserve
        return max(0.0, earned - self._retries.total(now))

    def has_retry(self, now: float, answered: int) -> bool:
        """Whether one retry may be made at `now`; where not, fail at once, do not wait for one."""
        return self.balance(now, answered) >= 1.0 - 1e-9

    def retried(self, now: float) -> None:
        """One retry was made at `now` (seconds)."""
        self._retries.add(1, now)
