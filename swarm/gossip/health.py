"""How long to doubt a peer, and how much to doubt oneself.

Dadgar, Phillips, Currey: "Lifeguard: local health awareness for more accurate failure detection",
arXiv 1707.00788.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarm.gossip.config import GossipConfig


class LocalHealth:
    """A score from 0 (healthy) to `ceiling`: how much of the silence may be our own fault.

    Our own missed answers, refuted suspicions of us and pauses raise it; answers lower it.
    """

    __slots__ = ("_ceiling", "score")

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self.score = 0

    def worse(self, by: int = 1) -> None:
        """A sign that this node is slow or cut off."""
        self.score = min(self._ceiling, self.score + by)

    def better(self) -> None:
        """A peer answered in time."""
        self.score = max(0, self.score - 1)

    @property
    def factor(self) -> int:
        """What every wait is multiplied by: 1 to 1 + ceiling."""
        return 1 + self.score


@dataclass(slots=True)
class Doubt:
    """A peer that did not answer us (`firsthand`) or that others suspect.

    `began` is when an answer was first missed, `since` when it became a suspicion: after our own
    second attempt and those of the helpers. `failures` counts our failed attempts since `began`,
    one after the other: `counted` is when the last one ended.
    """

    began: float
    firsthand: bool
    counted: float = 0.0
    since: float | None = None
    failures: int = 0
    accusers: set[str] = field(default_factory=set)


def suspicion_seconds(config: GossipConfig, fleet: int, accusers: int) -> float:
    """Seconds from suspicion to death, in a fleet of `fleet` nodes, when `accusers` others agree.

    max - (max - min) * log(C + 1) / log(K + 1), Lifeguard section IV-B, with SWIM's
    min = suspicion * max(1, log10 n) * interval and max = suspicion_max * min.
    """
    least = config.suspicion * max(1.0, math.log10(max(1, fleet))) * config.interval
    most = config.suspicion_max * least
    share = math.log(min(accusers, config.accusers) + 1) / math.log(config.accusers + 1)
    return most - (most - least) * share
