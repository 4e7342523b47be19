"""Nodes that hang while they load the stages of their slot: others take their places. Pure.

A node claims its slot before it loads. As long as it lives, nobody else takes that place: so one
whose loading never ends would keep a slot from being served. Loading takes as long as bytes do: who
has come no stage further for longer than that is left out, until it does, or for `LEFT_OUT_FOR`
seconds. It still keeps a place that no other node can take, for it may only be slow.

Each node watches the others, not itself: a node that gave its claim up by itself would look like a
free one to those who have not watched it as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.slots import AutoNode, SlotClaim

PATIENCE = 30.0  # seconds without a stage more, whatever its size
LOADED_A_SECOND = 3e6  # bytes of a slot's need, on the slowest device that counts as well
LEFT_OUT_FOR = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class _Loading:
    """What a node has of its slot, and since when it is so much."""

    claim: SlotClaim
    held: int
    since: float


class Hanging:
    """One node's patience with the others. `now`: seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._loading: dict[str, _Loading] = {}
        # Until when a node is left out, and what it served when it was seen to hang.
        self._left_out: dict[str, tuple[float, frozenset[int]]] = {}

    def observe(
        self, plan: PlanInForce | None, peers: Iterable[AutoNode], now: float
    ) -> frozenset[str]:
        """The peers that hang. peers: the other living nodes of the role."""
        loading: dict[str, _Loading] = {}
        left_out: dict[str, tuple[float, frozenset[int]]] = {}
        for node in peers:
            until, served = self._left_out.get(node.node, (-inf, frozenset()))
            if now < until and node.serves <= served:
                left_out[node.node] = until, served
                continue
            slot = _claimed(plan, node)
            if slot is None or node.claim is None or node.serves.issuperset(slot.stages):
                continue
            held = len(node.serves.intersection(slot.stages))
            known = self._loading.get(node.node)
            if known is None or (known.claim, known.held) != (node.claim, held):
                known = _Loading(node.claim, held, now)
            if now - known.since >= patience(slot, node):
                left_out[node.node] = now + LEFT_OUT_FOR, node.serves
            else:
                loading[node.node] = known
        self._loading, self._left_out = loading, left_out
        return frozenset(left_out)


def patience(slot: PlanSlot, node: AutoNode) -> float:
    """Seconds in which a node that loads this slot has a stage more."""
    return PATIENCE + slot.need / min(LOADED_A_SECOND, node.link.down or inf)


def _claimed(plan: PlanInForce | None, node: AutoNode) -> PlanSlot | None:
    claim = node.claim
    if plan is None or claim is None or claim.number != plan.number:
        return None
    return plan.slots[claim.slot] if claim.slot < len(plan.slots) else None
