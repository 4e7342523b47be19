"""Which node fills which slot: every node decides alike from the same view, without an election.

A node fills one slot at most. Who has filled a slot of the present plan keeps it; then each slot
goes to the node that the plan was computed for; then free nodes are taken, those first that are
fast enough for the slot and hold most of its stages, by rendezvous hashing. Models of lower
priority give way only to the node that a plan was computed for. Two nodes that filled
one place, because their views of the mesh differed for a moment, are told apart by the same
order: the second gives it back as soon as it hears of the first.

A place is one of the `replicas` of a slot. First places come before second ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from math import inf

from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.links import NEAR, NodeLink, time_on_link
from swarm.routing.rendezvous import hash64, mix

# Of the time that the plan expects at a slot: a node within it does as well as the one it is for.
FAST_ENOUGH = 1.25


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """What a node gossips: it fills this slot of the plan with this number."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class AutoNode:
    """A living node of role `auto`, as gossip tells of it, for one model version.

    room: bytes that it has for stages, those that it holds included. pace_us: microseconds of each
    stage on it, from stage 1; () where it has not measured. serves: stages that it serves now.
    link: to the server. spare: bytes of the room for which no other model has to give way; -1: all
    of it. yields: models of higher priority need what it holds.
    """

    node: str
    room: int = 0
    pace_us: tuple[int, ...] = ()
    claim: SlotClaim | None = None
    serves: frozenset[int] = frozenset()
    host: str = ""
    link: NodeLink = NEAR
    spare: int = -1
    yields: bool = False

    def has_spare(self, slot: PlanSlot) -> bool:
        """Whether it may take a slot without another model's giving way."""
        return min(self.room, self.spare) >= slot.need if self.spare >= 0 else True

    def time_of(self, slot: PlanSlot) -> float:
        """Microseconds of a request at this slot on this node; inf where nobody knows."""
        if len(self.pace_us) < slot.last:
            return inf
        return float(sum(self.pace_us[slot.first - 1 : slot.last]))

    def may_take(self, slot: PlanSlot) -> bool:
        """Whether it has room, and a link that takes less time for the slot than computing does."""
        if self.link == NEAR:
            return self.room >= slot.need
        rates = [rate for rate in (self.link.down, self.link.up) if rate]
        on_link = time_on_link(slot.link_bytes, min(rates, default=0), ())
        return self.room >= slot.need and self.link.round_trip_us + on_link <= slot.compute_us


def fill(
    plan: PlanInForce, nodes: Iterable[AutoNode], hanging: Collection[str] = ()
) -> dict[str, int]:
    """The slot of each node that has one. nodes: those that live and do not leave. hanging: those
    of them that get only what no other node can take (`swarm.auto.hanging`)."""
    free = {node.node: node for node in nodes}
    last = [free.pop(node) for node in sorted(hanging) if node in free]
    filled: dict[str, int] = {}
    places = [slot.replicas for slot in plan.slots]  # that nobody fills yet

    def give(slot: int, takers: Sequence[AutoNode], most: int) -> None:
        for node in takers[: min(most, places[slot])]:
            filled[node.node] = slot
            del free[node.node]
            places[slot] -= 1

    holders: list[list[AutoNode]] = [[] for _ in plan.slots]
    for node in free.values():
        claim = node.claim
        if claim is None or claim.number != plan.number or claim.slot >= len(holders):
            continue
        if _keeps(node, plan.slots[claim.slot]):
            holders[claim.slot].append(node)
    for number, slot in enumerate(plan.slots):
        give(number, sorted(holders[number], key=_order(plan, number)), slot.replicas)
    for number, slot in enumerate(plan.slots):
        meant = free.get(slot.node)
        if meant is not None and places[number] == slot.replicas and _fits(meant, slot):
            give(number, [meant], 1)
    vacant = sum(places)
    able: dict[int, list[AutoNode]] = {}  # by slot, the last one first: whom its places go to
    for turn in range(max((slot.replicas for slot in plan.slots), default=0)):
        for number, slot in enumerate(plan.slots):
            if places[number] < slot.replicas - turn or not places[number]:
                continue
            if number not in able:
                may = [n for n in free.values() if n.may_take(slot) and n.has_spare(slot)]
                able[number] = nsmallest(vacant, may, _order(plan, number))[::-1]
            while able[number] and able[number][-1].node not in free:
                able[number].pop()
            give(number, able[number][-1:], 1)
    free = {node.node: node for node in last}
    for number in empty(plan, filled):
        claim = SlotClaim(plan.number, number)
        give(number, [node for node in free.values() if node.claim == claim], 1)
    return filled


def empty(plan: PlanInForce, filled: Mapping[str, int]) -> list[int]:
    """The slots that no node fills."""
    taken = set(filled.values())
    return [number for number in range(len(plan.slots)) if number not in taken]


def is_behind(plan: PlanInForce | None, nodes: Iterable[AutoNode]) -> bool:
    """Whether a node fills a slot of a later plan than this one: its announcement was lost."""
    number = 0 if plan is None else plan.number
    return any(node.claim is not None and node.claim.number > number for node in nodes)


def to_hold(
    plan: PlanInForce | None,
    me: AutoNode,
    slot: int | None,
    peers: Iterable[AutoNode],
    need: Callable[[int], int] = lambda stage: 0,
) -> frozenset[int]:
    """The stages that a node holds now: those of its slot, and those that it serves still and that
    no holder of a slot serves in its place.

    peers: the other nodes of the role. need: bytes that a stage takes. Stages of no slot are
    served by nodes named by hand, or by nobody any more: they are let go. A node without room for
    both lets go first, or two such nodes would wait for each other for ever: fallbacks serve
    meanwhile, or requests wait in the lane. So does one whose room models of higher priority need.
    """
    if plan is None:
        return me.serves
    own = frozenset(plan.slots[slot].stages) if slot is not None else frozenset()
    if not me.serves:
        return own
    served = {
        stage
        for peer in peers
        if peer.claim is not None and peer.claim.number == plan.number
        if peer.claim.slot < len(plan.slots)
        for stage in plan.slots[peer.claim.slot].stages
        if stage in peer.serves
    }
    kept = {s for s in me.serves if s not in served and plan.of_stage(s) is not None}
    if me.yields or (kept - own and sum(map(need, own | kept)) > me.room):
        return own & me.serves  # and the rest of its slot at the next look
    return own | kept


def _fits(node: AutoNode, slot: PlanSlot) -> bool:
    return node.room >= slot.need


def _keeps(node: AutoNode, slot: PlanSlot) -> bool:
    """What is free varies: who holds the stages already has room for them, unless others may have
    it."""
    return _fits(node, slot) or (not node.yields and node.serves.issuperset(slot.stages))


def _order(plan: PlanInForce, number: int) -> Callable[[AutoNode], tuple[object, ...]]:
    """By what nodes are sorted, so that who shall fill the slot first comes first."""
    slot = plan.slots[number]
    key = f"{plan.model}/{plan.version}/{number}"
    limit, stages = FAST_ENOUGH * slot.compute_us, frozenset(slot.stages)

    def order(node: AutoNode) -> tuple[object, ...]:
        slow = limit > 0 and node.time_of(slot) > limit
        held = len(node.serves & stages)
        return node.node != slot.node, slow, -held, -_rank(key, node.node), node.node

    return order


@lru_cache(maxsize=1 << 14)
def _rank(key: str, node: str) -> int:
    """The order of `rendezvous`: of equal weights, it is that of the hashes."""
    return mix(hash64(key), hash64(node))
