"""A request's budget: how much time is left, whether to start, and who used it up.

A budget is a duration, never a point in time: the clocks of devices differ. Each hop subtracts what
it measured with its own clock (gRPC's `grpc-timeout` does the same).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class HopTimes(Protocol):
    """What the arithmetic needs of a hop (`swarm.messages.Hop`): times in microseconds."""

    @property
    def stage(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def queue_us(self) -> int: ...
    @property
    def compute_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Time left for a request, in seconds; at or under zero it is spent."""

    remaining_s: float

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return not self.remaining_s > 0

    def after(self, queue_s: float = 0.0, compute_s: float = 0.0) -> "Budget":
        """What is left after so many seconds queued and computed. Time never comes back: negative
        durations (a clock stepped back) count as zero."""
        return Budget(self.remaining_s - max(0.0, queue_s) - max(0.0, compute_s))


def should_start(remaining_s: float, p50_s: float, enabled: bool = True) -> bool:
    """Whether work that takes `p50_s` (seconds) at the median is worth starting.

    enabled: True drops what would more likely than not finish too late; False drops only what is
    out of budget already.
    """
    return remaining_s > 0 and (not enabled or remaining_s >= p50_s)


@dataclass(frozen=True, slots=True)
class Spent:
    """The hop that used most of a request's time; times in microseconds."""

    stage: int
    node: str
    queue_us: int
    compute_us: int
    share: float
    """Of all time that the hops account for, 0..1."""

    def __str__(self) -> str:
        return (
            f"stage {self.stage} on {self.node} used {self.share:.0%}: "
            f"{self.queue_us / 1e3:.1f} ms queued, {self.compute_us / 1e3:.1f} ms computed"
        )


def slowest_hop(hops: Iterable[HopTimes]) -> Spent | None:
    """The hop that used most of the time, queueing included; the earliest among equals.

    None where no hop accounts for any time.
    """
    total = most = 0
    slowest: HopTimes | None = None
    for hop in hops:
        used = max(0, hop.queue_us) + max(0, hop.compute_us)
        total += used
        if used > most:
            slowest, most = hop, used
    if slowest is None:
        return None
    return Spent(slowest.stage, slowest.node, slowest.queue_us, slowest.compute_us, most / total)
