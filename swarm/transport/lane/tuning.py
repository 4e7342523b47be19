"""When a lane's `ack_wait` follows the work, and when it goes back to the model's own. Pure.

A longer wait costs a failover that much more, so one slow message, or a busy minute, must not keep
it long: a few samples do not count, and without samples the wait is halved step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarm.flow.ack_wait import CEILING_S, ack_wait_for
from swarm.flow.latency import LatencyWindow

ENOUGH = 20  # samples in a window
CALM = 30.0  # seconds without a rise, after which the wait goes back
STOPS, STOPS_WITHIN = 2, 10.0  # so many in so many seconds are stops; more are a loop too busy


@dataclass(frozen=True, slots=True)
class Work:
    """How long messages are in hand: `count` samples of late, and their 99th percentile (seconds),
    for which no single sample counts."""

    count: int = 0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is known of a lane's `ack_wait` from the looks before. Times in seconds.

    seen: the wait at the last look. calm_since: when it rose last.
    """

    seen: float
    calm_since: float

    def look(
        self, work: Work, present: float, usual: float, link: float, most: float, now: float
    ) -> tuple[Tuning, float]:
        """The next state, and the wait that the lane is to have.

        present: the wait in force; any node may have changed it. usual: the model's own. link: what
        the slowest link needs. most: at most so much, but for the link.
        """
        calm_since = now if present > self.seen else self.calm_since
        if work.count >= ENOUGH:
            wanted = ack_wait_for(work.p99, ceiling=most, current=present, link=link)
        else:
            least = max(min(usual, most), min(link, CEILING_S))
            wanted = max(present, least)
            if now - calm_since >= CALM:
                wanted = max(present / 2, least)
        if wanted > present:
            calm_since = now
        return replace(self, seen=wanted, calm_since=calm_since), wanted


def measured_work(holding: LatencyWindow, now: float) -> Work:
    """What a window of latencies says of the work. now: seconds of its clock."""
    holding.percentile(0.99, now)  # forgets what is old, which `count` does not
    count = holding.count
    return Work(count, holding.percentile(max(0.0, min(0.99, 1 - 1.5 / max(1, count))), now))


class Stops:
    """Tells a process that stood still from a loop that is always behind. Times in seconds.

    What came before a stop was held for as long as the stop, whatever the work takes.
    """

    __slots__ = ("_due", "_lately", "until")

    def __init__(self) -> None:
        self.until = 0.0
        """What came before this moment was in hand over a stop."""
        self._due = 0.0
        self._lately: tuple[float, ...] = ()

    def ended(self, due: float, now: float) -> None:
        """The process stood still until now: what was due at `due` (of any clock) is not done."""
        if due == self._due:
            return  # the same stop
        self._due = due
        self._lately = (*(at for at in self._lately if now - at < STOPS_WITHIN), now)
        if len(self._lately) <= STOPS:
            self.until = now
