"""How the models of a fleet share the memory of its devices. Pure.

A *pool* is a memory that several nodes take from: that of a host, that of its accelerator. What a
version takes of a pool is counted once, whoever asks: the stages that a node holds, and those that
it claims beside them. `allot` grants it, to models of high priority first; among equal ones to what
is held already, then by name. So all who know the same claims grant alike, the sum is never more
than there is, and nobody takes what a model of its own priority holds.

What is left after a model's own priority is room that it may claim, and those below it give way.
What is left after all of them is room that it may have without anybody giving way: *spare*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

Holder = tuple[str, str, str]  # node, model, version


@dataclass(frozen=True, slots=True)
class RoomUse:
    """What a version takes of a node's memory. priority: the model's. claimed: bytes of all stages
    that the node shall hold; held: of those that it holds, or loads."""

    node: str
    model: str
    version: str
    priority: int = 0
    claimed: int = 0
    held: int = 0

    @property
    def beyond(self) -> int:
        """Bytes that it claims and does not hold."""
        return max(0, self.claimed - self.held)


@dataclass(frozen=True)
class Allotment:
    """What each version is granted of a pool, and what is left. total: bytes of the pool."""

    total: int
    uses: tuple[RoomUse, ...] = ()
    granted: Mapping[Holder, int] = field(default_factory=dict)

    def of(self, node: str, model: str, version: str) -> int:
        """Bytes for a version at a node, what it holds included."""
        return self.granted.get((node, model, version), 0)

    def left(self, down_to: float = -inf) -> int:
        """Bytes that are left after all models of this priority and above."""
        taken = (self.granted[_holder(u)] for u in self.uses if u.priority >= down_to)
        return max(0, self.total - sum(taken))

    def gives_way(self, node: str, model: str, version: str) -> bool:
        """Whether a version has to let go of what it holds, for models of higher priority that
        wait for room. What was measured as free varies: that alone is no reason."""
        own = next((u for u in self.uses if _holder(u) == (node, model, version)), None)
        if own is None or self.of(node, model, version) >= own.held:
            return False
        return any(use.priority > own.priority and use.beyond for use in self.uses)

    def may_load(self, node: str, model: str, version: str, more: int) -> bool:
        """Whether a version may load so many bytes beside what all of the pool hold now: those that
        give way have let go, and nobody with a better right claims them."""
        own = next((u for u in self.uses if _holder(u) == (node, model, version)), None)
        if own is None or self.of(node, model, version) < own.held + more:
            return False
        return sum(use.held for use in self.uses) + more <= self.total


def allot(total: int, uses: Iterable[RoomUse]) -> Allotment:
    """Grant what is claimed, as far as there is room."""
    known = tuple(sorted(uses, key=lambda u: (-u.priority, u.model, u.version, u.node)))
    granted: dict[Holder, int] = {}
    left, at = max(0, total), 0
    while at < len(known):
        end = at
        while end < len(known) and known[end].priority == known[at].priority:
            end += 1
        alike = known[at:end]
        for use in alike:
            granted[_holder(use)] = given = min(left, use.held)
            left -= given
        for use in alike:
            given = min(left, use.beyond)
            granted[_holder(use)] += given
            left -= given
        at = end
    return Allotment(max(0, total), known, granted)


def divided(left: int, nodes: Sequence[str]) -> dict[str, int]:
    """What is left of a pool for each of the nodes that may take it: they plan without knowing
    what the others get, so each counts its part."""
    return dict.fromkeys(nodes, left // len(nodes)) if nodes else {}


def _holder(use: RoomUse) -> Holder:
    return use.node, use.model, use.version
