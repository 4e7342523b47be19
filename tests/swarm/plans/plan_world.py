"""Nodes of role `auto` in simulated time: gossip that is late, a key that compares and sets, cuts.

Each node decides as a real one does (`swarm.plans`): it fills the slot that is its own by its own
picture, loads, serves, and only then lets go of what others serve. Nothing here knows a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from swarm.plans.document import PlanInForce
from swarm.plans.drafts import Draft, Partition, StageFacts, predicted
from swarm.plans.links import NEAR, NodeLink
from swarm.plans.proposing import PROPOSERS, Proposing, Situation, place_of
from swarm.plans.slots import AutoNode, Claim, empty, fill, to_hold

STEP = 0.5  # seconds
GOSSIP = 1.0  # seconds until a node hears of another one's change
LOAD = 1.0  # seconds for which a node loads
STAGES = tuple(StageFacts(2000 + 100 * n, need=10, file=1_000_000) for n in range(8))


@dataclass
class Device:
    """A node, and what others have heard of it when. told: by time."""

    node: str
    room: int
    pace: tuple[int, ...]
    born: float
    proposing: Proposing = field(default_factory=Proposing)
    claim: Claim | None = None
    serves: frozenset[int] = frozenset()
    loads: tuple[frozenset[int], float] | None = None  # stages, and until when
    told: list[tuple[float, AutoNode]] = field(default_factory=list)
    link: NodeLink = NEAR

    def entry(self) -> AutoNode:
        return AutoNode(self.node, self.room, self.pace, self.claim, self.serves, "", self.link)


@dataclass
class World:
    """`run(seconds)`. side(node): in a cut network, which side a node is on; the key is on 0."""

    stages: tuple[StageFacts, ...] = STAGES
    now: float = 0.0
    plan: PlanInForce | None = None
    revision: int = 0
    devices: dict[str, Device] = field(default_factory=dict)
    plans: list[tuple[float, PlanInForce]] = field(default_factory=list)
    refused: int = 0  # proposals that came too late, or without the key
    side: Callable[[str], int] = lambda node: 0
    known: dict[str, tuple[PlanInForce | None, int]] = field(default_factory=dict)
    drafts: dict[tuple[AutoNode, ...], Draft | None] = field(default_factory=dict)

    def join(self, node: str, room: int = 1000, speed: float = 1.0) -> None:
        pace = tuple(round(stage.usual_us / speed) for stage in self.stages)
        device = self.devices[node] = Device(node, room, pace, self.now)
        device.told.append((self.now, device.entry()))

    def fade(self, node: str, link: NodeLink) -> None:
        """A node's link is another one from now on, and the node has measured it."""
        device = self.devices[node]
        device.link = link
        device.told.append((self.now, device.entry()))

    def leave(self, node: str) -> None:
        del self.devices[node]
        self.known.pop(node, None)

    def heard(self, by: str) -> list[AutoNode]:
        """The picture of one node: what it has heard of those on its side."""
        found = []
        for device in self.devices.values():
            if self.side(device.node) != self.side(by):
                continue
            until = self.now if device.node == by else self.now - GOSSIP
            entry = next((entry for at, entry in reversed(device.told) if at <= until), None)
            if entry is not None:
                found.append(entry)
        return found

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            for device in list(self.devices.values()):
                self._decide(device)

    def _read(self, node: str) -> tuple[PlanInForce | None, int]:
        """The plan as this node knows it: behind a cut, the one that it has read before."""
        if self.side(node) == 0:
            self.known[node] = self.plan, self.revision
        return self.known.get(node, (None, 0))

    def _decide(self, device: Device) -> None:
        plan, revision = self._read(device.node)
        nodes = self.heard(device.node)
        before = device.entry()
        if device.loads is not None and device.loads[1] <= self.now:
            device.serves |= device.loads[0]
            device.loads = None
        filled = {} if plan is None else fill(plan, nodes)
        slot = filled.get(device.node)
        device.claim = None if plan is None or slot is None else Claim(plan.number, slot)
        peers = [node for node in nodes if node.node != device.node]
        hold = to_hold(plan, device.entry(), slot, peers, lambda n: self.stages[n - 1].need)
        device.serves &= hold
        if device.loads is None and hold - device.serves:
            device.loads = hold - device.serves, self.now + LOAD
        if device.entry() != before:
            device.told.append((self.now, device.entry()))
        self._propose(device, plan, revision, filled, nodes)

    def _propose(
        self,
        device: Device,
        plan: PlanInForce | None,
        revision: int,
        filled: dict[str, int],
        nodes: list[AutoNode],
    ) -> None:
        place = place_of("m/1", device.node, [node.node for node in nodes])
        best = self._draft(nodes) if place < PROPOSERS else None
        broken, present = "", inf
        if plan is None:
            broken = "no plan yet"
        elif lacks := empty(plan, filled):
            broken = f"nobody for slot {lacks[0]}"
        else:
            present = predicted(plan, filled, nodes, self.stages)
        seen = Situation(plan, broken, present, best)
        reason = device.proposing.observe(seen, place, self.now)
        if not reason or best is None:
            return
        if self.side(device.node) != 0 or revision != self.revision:
            self.refused += 1
            return
        number = 1 if plan is None else plan.number + 1
        self.plan = PlanInForce("m", "1", number, best.slots, device.node, reason)
        self.revision += 1
        self.plans.append((self.now, self.plan))

    def _draft(self, nodes: list[AutoNode]) -> Draft | None:
        key = tuple(nodes)
        if key not in self.drafts:
            self.drafts[key] = Partition().draft("m/1", self.stages, nodes, ())
        return self.drafts[key]

    def holders(self) -> dict[int, list[str]]:
        """The nodes that claim each slot of the plan in force."""
        assert self.plan is not None
        claims: dict[int, list[str]] = {n: [] for n in range(len(self.plan.slots))}
        for device in self.devices.values():
            if device.claim is not None and device.claim.number == self.plan.number:
                claims[device.claim.slot].append(device.node)
        return claims

    def served(self) -> frozenset[int]:
        return frozenset().union(*(device.serves for device in self.devices.values()))

    def freeze(self) -> None:
        assert self.plan is not None
        self.plan = replace(self.plan, number=self.plan.number + 1, frozen=True)
        self.revision += 1
