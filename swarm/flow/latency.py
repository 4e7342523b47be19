"""How long something usually takes: cheap enough for every message.

`Usual` is a mean in which the newest measurement counts most, with its deviation (RFC 6298, 2).
`LatencyWindow` knows percentiles of the last seconds. It is a log-bucket histogram: bucket widths
grow by a constant ratio, so that any percentile is known within a constant *relative* error
(Masson, Rim, Lee: "DDSketch", VLDB 2019; HdrHistogram has the same idea). Forgetting is by slices
of time, so that nothing is sorted and nothing is stored per sample.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, exp, log
from operator import add, mul

SHORTEST_S = 1e-6
"""Durations under this count as this one: no clock we read is finer."""
LONGEST_S = 1e3
"""Durations above this count as this one: no budget is longer."""

SLICES = 6
EWMA_WEIGHT = 0.1  # of the newest sample; larger follows faster

BUCKETS_S = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends, in seconds, of the buckets in which durations are told to dashboards."""


class Usual:
    """An exponentially weighted moving average (EWMA) of durations, and of their deviation: O(1).

    start: seconds that are assumed before the first measurement. 0.0 assumes nothing: the first
        measurement counts whole.
    weight: of the newest measurement, above 0 and at most 1; larger follows faster.
    Raises ValueError for a weight outside.
    """

    __slots__ = ("_weight", "deviation", "ewma", "known")

    def __init__(self, start: float = 0.0, weight: float = 1 / 8) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"0 < weight <= 1: {weight}")
        self._weight = weight
        self.ewma = start
        """The usual duration in seconds."""
        self.deviation = 0.0
        """Seconds by which a measurement usually differs from `ewma`."""
        self.known = start > 0
        """Whether `ewma` rests on a start or a measurement."""

    def add(self, seconds: float) -> None:
        """Learn that it took `ewma` this time."""
        if self.known:
            off = seconds - self.ewma
            self.ewma += off * self._weight
            self.deviation += (abs(off) - self.deviation) / 4
        else:
            self.ewma, self.known = seconds, True


class LatencyWindow:
    """Percentiles of about the last `window_s` seconds, and an EWMA of all samples.

    A percentile is the nearest-rank sample within `relative_error` of its value, for samples in
    [SHORTEST_S, LONGEST_S]. It covers between `window_s * (1 - 1 / SLICES)` and `window_s` seconds.
    Memory is fixed: `(SLICES + 2) * log(LONGEST_S / SHORTEST_S) / (2 * relative_error)` integers,
    4100 at the defaults. `add` is O(1), `percentile` O(buckets).

    window_s: seconds remembered; longer is steadier and slower to see a change.
    relative_error: of a percentile, 0..1 exclusive; smaller costs memory.
    The window forgets in `SLICES` steps. The first samples of the EWMA are averaged.
    Raises ValueError for a knob out of its range.
    """

    __slots__ = (
        "_buckets",
        "_count",
        "_newest",
        "_origin",
        "_past",
        "_ratio",
        "_scale",
        "_seen",
        "_slice_s",
        "_slices",
        "_total",
        "_turn_at",
        "ewma",
        "window_s",
    )  # fmt: skip

    def __init__(self, window_s: float = 10.0, *, relative_error: float = 0.02) -> None:
        if not (window_s > 0 and 0 < relative_error < 1):
            raise ValueError("window_s > 0, 0 < relative_error < 1")
        self.window_s = window_s
        self.ewma = 0.0
        """Seconds; 0.0 before the first sample."""
        self._ratio = (1 + relative_error) / (1 - relative_error)
        self._scale = 1.0 / log(self._ratio)
        self._origin = log(SHORTEST_S)
        size = ceil((log(LONGEST_S) - self._origin) * self._scale) + 1
        self._total = [0] * size
        self._past = [0] * size  # samples that the window has forgotten
        self._slices = [[0] * size for _ in range(SLICES)]
        self._buckets = self._slices[0]
        self._newest = 0
        self._slice_s = window_s / SLICES
        self._turn_at: float | None = None
        self._count = 0
        self._seen = 0

    def add(self, seconds: float, now: float) -> None:
        """Count one duration (seconds) observed at `now` (seconds).

        Negative durations (a clock stepped back) count as zero. Raises ValueError for NaN.
        """
        if self._turn_at is None or now >= self._turn_at:
            self._turn(now)
        if seconds <= SHORTEST_S:
            bucket = 0
            if seconds < 0:
                seconds = 0.0
        elif seconds >= LONGEST_S:
            seconds = LONGEST_S
            bucket = len(self._total) - 1
        else:
            bucket = int((log(seconds) - self._origin) * self._scale)
        self._total[bucket] += 1
        self._buckets[bucket] += 1
        self._count += 1
        seen = self._seen = self._seen + 1
        weight = EWMA_WEIGHT
        self.ewma += (seconds - self.ewma) * (weight if seen * weight >= 1.0 else 1.0 / seen)

    @property
    def count(self) -> int:
        """Samples in the window, as of the last call that was given a time."""
        return self._count

    def percentile(self, q: float, now: float, default: float = 0.0) -> float:
        """Seconds under which the fraction `q` (0..1) of the window lies; `default` when empty.

        Raises ValueError where `q` is outside 0..1.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a percentile is a fraction 0..1: {q}")
        if self._turn_at is not None and now >= self._turn_at:
            self._turn(now)
        count = self._count
        if not count:
            return default
        rank = max(1, ceil(q * count))
        if q < 0.5:
            seen = 0
            for bucket, samples in enumerate(self._total):
                seen += samples
                if seen >= rank:
                    return self._value(bucket)
        above = count - rank  # samples above the one we want
        seen = 0
        bucket = len(self._total)
        for samples in reversed(self._total):
            bucket -= 1
            seen += samples
            if seen > above:
                break
        return self._value(bucket)

    def since_start(self, bounds: Sequence[float] = BUCKETS_S) -> tuple[list[int], float]:
        """All samples since the start: how many were in each bucket, and their sum in seconds.

        bounds: upper ends of the buckets, seconds, ascending; the last count is of the samples
        above them all. A sample within `relative_error` of an end may count on its other side, and
        the sum is within `relative_error`. It costs `add` nothing: samples are counted in any case.
        """
        every = list(map(add, self._past, self._total))
        edges = _edges(tuple(bounds), len(every), self._origin, self._scale)
        counts = [sum(every[low:high]) for low, high in pairwise(edges)]
        values = _values(len(every), self._origin, self._scale, self._ratio)
        return counts, sum(map(mul, every, values))

    def _value(self, bucket: int) -> float:
        """The point of a bucket that is within the relative error of both of its ends."""
        return _values(len(self._total), self._origin, self._scale, self._ratio)[bucket]

    def _turn(self, now: float) -> None:
        """Move to the slice of `now`, emptying the slices that expired."""
        if self._turn_at is None:
            self._turn_at = now + self._slice_s
            return
        steps = 1 + int((now - self._turn_at) / self._slice_s)
        self._turn_at += steps * self._slice_s
        total, past = self._total, self._past
        for _ in range(min(steps, len(self._slices))):
            self._newest = (self._newest + 1) % len(self._slices)
            expired = self._slices[self._newest]
            for bucket, samples in enumerate(expired):
                if samples:
                    past[bucket] += samples
                    total[bucket] -= samples
                    self._count -= samples
                    expired[bucket] = 0
        self._buckets = self._slices[self._newest]


@lru_cache(maxsize=64)
def _edges(bounds: tuple[float, ...], size: int, origin: float, scale: float) -> list[int]:
    """Where the buckets of a window are cut, to count those up to each bound together."""
    cuts = [max(0, min(size, round((log(bound) - origin) * scale))) for bound in bounds]
    return [0, *cuts, size]


@lru_cache(maxsize=64)
def _values(size: int, origin: float, scale: float, ratio: float) -> list[float]:
    """The duration that each bucket of a window stands for, seconds."""
    middle = 2 * ratio / (1 + ratio)
    return [
        min(LONGEST_S, max(SHORTEST_S, exp(origin + bucket / scale) * middle))
        for bucket in range(size)
    ]
