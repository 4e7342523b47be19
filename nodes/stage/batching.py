"""Micro-batching: whether to run what is queued now, or to wait a moment for company.

While a worker is busy a queue forms by itself, and the next run takes all of it; waiting on purpose
pays only where the lane cannot keep up otherwise. So an idle lane never waits, and a busy one only
when the arrival rate says that a companion comes soon enough to be worth it.
"""

from collections.abc import Sequence
from math import inf
from typing import TypeVar

from swarm.flow.latency import Usual

Item = TypeVar("Item")

TARGET_S = 0.020  # seconds that a run of several may take
WORTH = 0.05  # of a request's time, which a larger batch has to save to be worth its longer run


def waits_until(
    queued: int,
    oldest: float,
    now: float,
    *,
    max_batch: int,
    max_wait_s: float,
    arrivals_per_s: float,
    run_s: float,
) -> float | None:
    """Until when a free worker waits for company for `queued` requests of equal shapes, which it
    could run; None where it runs them now. Ask at each arrival, finish, and at that moment.

    oldest, now, and the moment: seconds; oldest: when the first of them came.
    max_batch: most requests in one run. max_wait_s: most seconds that a request is held back on
    purpose; 0 never holds back. arrivals_per_s: recent arrival rate of the lane (`ArrivalRate`).
    run_s: seconds that a run usually takes.

    With n queued and a companion expected after the gap 1 / arrivals_per_s, waiting costs n gaps
    and saves the companion a run's worth of queueing: it waits only where n * gap < run_s and the
    gap ends before max_wait_s does. A lane with less than one arrival per run never waits.
    """
    gap = 1.0 / arrivals_per_s if arrivals_per_s > 0 else inf
    latest = oldest + max_wait_s
    if queued >= max_batch or now + gap > latest or queued * gap >= run_s:
        return None
    # Twice the gap: arrivals are random, and the mean is exceeded every third time.
    return min(latest, now + 2 * gap)


class ArrivalRate:
    """Arrivals a second, from the usual gap between them."""

    __slots__ = ("_gap", "_last")

    def __init__(self) -> None:
        self._gap = Usual(weight=0.1)  # larger follows bursts faster
        self._last: float | None = None

    def add(self, now: float) -> None:
        """Count one arrival at `now` (seconds)."""
        last = self._last
        self._last = now if last is None else max(last, now)
        if last is None:
            return
        self._gap.add(max(0.0, now - last))

    def per_s(self, now: float) -> float:
        """Arrivals a second; 0.0 until two came. A silence longer than the mean gap lowers it."""
        if self._last is None or not self._gap.known:
            return 0.0
        return 1.0 / max(self._gap.ewma, now - self._last, 1e-9)


class BatchLimit:
    """A `max_batch` that follows what the device can do (Clipper, NSDI 2017: additive increase,
    multiplicative decrease against a latency objective).

    largest: never above, >= 1. A full batch that runs within `TARGET_S` raises the limit by one, a
    run over it lowers the limit by a quarter (at least by one).
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._took: dict[int, Usual] = {}  # runs, by their requests
        self.size = largest
        """The limit at present, 1 .. largest."""

    @property
    def shortest(self) -> int:
        """The smallest batch that yields nearly as much as the best one within the limit, as far as
        is known: who comes in a hurry waits no longer than that run for nothing."""
        each = {n: took.ewma / n for n, took in self._took.items() if n <= self.size}
        if 1 not in each:
            return self.size
        best = min(each.values())
        return min(n for n, seconds in each.items() if seconds <= best * (1 + WORTH))

    def ran(self, batch: int, seconds: float) -> None:
        """Learn that a run of `batch` requests took `seconds`."""
        took = self._took.get(batch)
        if took is None:
            took = self._took[batch] = Usual()
        took.add(seconds)
        if seconds > TARGET_S:
            if batch <= self.size:
                self.size = max(1, min(self.size - 1, batch * 3 // 4))
        elif batch >= self.size:
            self.size = min(self._largest, self.size + 1)


def split_on_failure(batch: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]] | None:
    """Halves of a batch that failed, to be run apart; None for a single one: it is the poison.

    A single poison member of n is found in at most 2 * ceil(log2(n)) further runs, and every other
    member still gets its answer. Raises ValueError for an empty batch.
    """
    if not batch:
        raise ValueError("an empty batch cannot fail")
    if len(batch) == 1:
        return None
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
