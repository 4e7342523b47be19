"""The phi-accrual failure detector, over answer times.

Hayashibara, Defago, Yared, Katayama: "The phi accrual failure detector", SRDS 2004. There phi
judges the silence since the last heartbeat; in a fleet where a node hears from each peer only once
in n / fanout rounds, the time that an answer takes is what a healthy peer repeats, so that is what
is learned. One detector serves all peers: its memory and cost do not grow with the fleet.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist

_LEAST_TAIL = 1e-300  # keeps the logarithm finite: phi ends at 300
_WINDOW = 64  # answers remembered: about 20 rounds at fanout 3


class PhiDetector:
    """Learns how long answers take (seconds) and says how unlikely a longer wait is.

    `jitter` is the least standard deviation, seconds: without it, a run of equal answer times
    would make the next slower one look like a death.
    """

    __slots__ = ("_jitter", "_samples", "_squares", "_sum")

    def __init__(self, jitter: float) -> None:
        self._jitter = jitter
        self._samples: deque[float] = deque()
        self._sum = 0.0
        self._squares = 0.0

    def observe(self, elapsed: float) -> None:
        """Learn that an answer took `elapsed` seconds. Negative and non-finite ones are ignored."""
        if not 0.0 <= elapsed < math.inf:
            return
        self._samples.append(elapsed)
        self._sum += elapsed
        self._squares += elapsed * elapsed
        if len(self._samples) > _WINDOW:
            oldest = self._samples.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest

    def _fit(self) -> tuple[float, float]:
        count = len(self._samples)
        if count == 0:
            return 0.0, self._jitter
        mean = max(0.0, self._sum / count)
        variance = max(0.0, self._squares / count - mean * mean)
        return mean, max(self._jitter, math.sqrt(variance))

    def phi(self, elapsed: float) -> float:
        """-log10 of the chance that a living peer takes longer than `elapsed` seconds (0..300)."""
        mean, deviation = self._fit()
        tail = 0.5 * math.erfc((elapsed - mean) / (deviation * math.sqrt(2.0)))
        return max(0.0, -math.log10(max(tail, _LEAST_TAIL)))

    def wait(self, deviations: float) -> float:
        """Seconds after which the doubt reaches the level that `deviations` stands for."""
        mean, deviation = self._fit()
        return mean + deviations * deviation


def deviations(phi: float) -> float:
    """Standard deviations above the mean at which a normal answer time reaches `phi`.

    Raises `ValueError` unless 0 < phi <= 15 (beyond, 1 - 10^-phi is not a double below 1).
    """
    if not 0 < phi <= 15:
        raise ValueError(f"phi must be above 0 and at most 15, not {phi}")
    return -NormalDist().inv_cdf(10.0**-phi)
