"""Nodes of role `auto` in virtual time: gossip that is late, a key that compares and sets, cuts.

Each node decides as a real one does (`swarm.auto`): it fills the slot that is its own by its own
picture, loads, serves, and only then lets go of what others serve; it makes drafts beside its
looks, and proposes. Nothing here knows a network, and nothing reads a clock: two runs with one seed
are the same run.

A real node looks at each beat and at each news. Here it looks at each news, and at beats only where
time alone may change something: so the looks that are left out would decide nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from swarm.auto.document import PlanInForce, next_number
from swarm.auto.drafting import Drafting
from swarm.auto.drafts import Draft, Partition, StageEstimate, predicted, with_replicas
from swarm.auto.links import NEAR, NodeLink
from swarm.auto.proposing import PROPOSERS, Proposing, Situation, place_of
from swarm.auto.replicating import change, slot_loads
from swarm.auto.slots import AutoNode, SlotClaim, empty, fill, is_behind, to_hold
from swarm.fleet.scaling import Scaling
from swarm.fleet.warm_pool import StageState

TICK = 0.5  # seconds
BEAT = 0.6  # seconds between two looks without news
PAUSE = 0.05  # seconds: news that come together are one look
LISTEN = 1.0  # seconds for which a new node takes no slot
LOAD = 1.0  # seconds for which a node loads
DRAFT = 0.02  # seconds for which it makes a draft
READ_WITHIN, READ_EVERY, MISSED = 0.3, 10.0, 0.01  # seconds; share of announcements that are lost
READ_AGAIN, ANSWER = 1.0, 0.05  # seconds between two readings, and that one takes
MOST_KEPT = 1000  # pictures
LEAVES = 2.0  # seconds for which a node that leaves still serves
STAGES = tuple(StageEstimate(2000 + 100 * n, need=10, file=1_000_000) for n in range(8))
MODEL, VERSION = "m", "1"


@dataclass(eq=False)
class Device:
    """A node, and its picture of the others: what it has heard of each, itself included.

    told: how many entries it has told. digest: the same for the same picture. place: among those
    that may propose.
    """

    node: str
    room: int
    pace: tuple[int, ...]
    born: float
    side: int = 0
    link: NodeLink = NEAR
    claim: SlotClaim | None = None
    serves: frozenset[int] = frozenset()
    loads: tuple[frozenset[int], float] | None = None  # stages, and until when
    told: int = 0
    picture: dict[str, tuple[int, AutoNode]] = field(default_factory=dict)
    digest: int = 0
    plan: PlanInForce | None = None
    revision: int = 0
    read_at: float = -inf
    place: int = PROPOSERS
    looks: int = 0
    looks_at: float = inf
    drafted_at: float = inf  # when the draft that is being made is done
    draft: Draft | None = None
    drafts: Drafting = field(default_factory=Drafting)
    proposing: Proposing = field(default_factory=Proposing)
    scaling: Scaling = field(default_factory=Scaling)

    def entry(self) -> AutoNode:
        return AutoNode(self.node, self.room, self.pace, self.claim, self.serves, "", self.link)

    def hears(self, node: str, version: int, entry: AutoNode | None) -> bool:
        """Whether this is news. entry: None where the node is gone."""
        known = self.picture.get(node)
        if (known is None and entry is None) or (known is not None and known[0] > version):
            return False
        if known is not None:
            self.digest ^= hash(known[1])
            del self.picture[node]
        if entry is not None:
            self.picture[node] = version, entry
            self.digest ^= hash(entry)
        return True


@dataclass
class World:
    """`run(seconds)`. gossip: seconds within which each node hears of a change. demand(now):
    requests a second; None for no load. on_tick(): called each `TICK`.

    plans: those that were put in force, and when. refused: proposals that came too late, or without
    the key. drafted: how often nodes made drafts.
    """

    stages: Sequence[StageEstimate] = STAGES
    gossip: tuple[float, float] = (0.3, 1.5)
    demand: Callable[[float], float] | None = None
    on_tick: Callable[[], None] = lambda: None
    seed: int = 1
    now: float = 0.0
    plan: PlanInForce | None = None
    revision: int = 0
    devices: dict[str, Device] = field(default_factory=dict)
    leaving: list[tuple[float, Device]] = field(default_factory=list)
    plans: list[tuple[float, PlanInForce]] = field(default_factory=list)
    refused: int = 0
    drafted: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._filled: dict[tuple[int, int, int], dict[str, int]] = {}
        self._pictures: dict[tuple[int, int], list[AutoNode]] = {}
        self._drafts: dict[tuple[int, int], Draft | None] = {}
        self._next_tick = 0.0
        self._is_cut = False

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Let something happen."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, act))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            upcoming = self._heap[0][0] if self._heap else inf
            if self._next_tick <= min(upcoming, until):
                self.now = self._next_tick
                self._next_tick += TICK
                self.on_tick()
            elif upcoming <= until:
                self.now, _, act = heapq.heappop(self._heap)
                act()
            else:
                self.now = until
                return

    # --- what happens to nodes ----------------------------------------------------------------

    def join(
        self, node: str, room: int = 1000, speed: float = 1.0, link: NodeLink = NEAR, side: int = 0
    ) -> None:
        pace = tuple(round(stage.usual_us / speed) for stage in self.stages)
        device = Device(node, room, pace, self.now, side, link)
        device.plan, device.revision = self.plan, self.revision
        for other in self.devices.values():
            if other.side == side or not self._is_cut:
                device.hears(other.node, other.told, other.entry())
        self.devices[node] = device
        self._tell(device)
        self._look_at(device, self.now + LISTEN)

    def die(self, node: str, noticed: tuple[float, float] = (1.0, 3.0)) -> None:
        """SIGKILL: each other node notices within so many seconds, and gossip."""
        del self.devices[node]
        first = self.chance.uniform(*noticed)
        for device in self.devices.values():
            self._deliver(device, node, 1 << 60, None, first)

    def leave(self, node: str) -> None:
        """SIGTERM: it says so, and ends its work."""
        device = self.devices.pop(node)
        self.leaving.append((self.now + LEAVES, device))
        for other in self.devices.values():
            self._deliver(other, node, 1 << 60, None)

    def fade(self, node: str, link: NodeLink) -> None:
        """A node's link is another one from now on, and the node has measured it."""
        self.devices[node].link = link
        self._changed(self.devices[node])

    def slow(self, node: str, factor: float) -> None:
        """A node takes so many times as long from now on, and says so."""
        device = self.devices[node]
        device.pace = tuple(max(1, round(us * factor)) for us in device.pace)
        self._changed(device)

    def cut(self, side: Callable[[str], int]) -> None:
        """The network falls apart; the key is on side 0. Each half takes the other one for dead."""
        self._is_cut = True
        for device in self.devices.values():
            device.side = side(device.node)
        for device in self.devices.values():
            for other in self.devices.values():
                if other.side != device.side:
                    self._deliver(device, other.node, 1 << 60, None, self.chance.uniform(1, 3))

    def heal(self) -> None:
        self._is_cut = False
        for device in self.devices.values():
            for other in self.devices.values():
                if other.side != device.side:
                    self._deliver(device, other.node, other.told, other.entry())
            if device.side != 0:
                self._reads(device, self.chance.uniform(0, READ_EVERY))
        for device in self.devices.values():
            device.side = 0

    # --- news -----------------------------------------------------------------------------------

    def _changed(self, device: Device) -> None:
        self._tell(device)
        self._look_at(device, self.now + PAUSE)

    def _tell(self, device: Device) -> None:
        device.told += 1
        entry = device.entry()
        device.hears(device.node, device.told, entry)
        for other in self.devices.values():
            if other is not device and (other.side == device.side or not self._is_cut):
                self._deliver(other, device.node, device.told, entry)

    def _deliver(
        self, to: Device, node: str, version: int, entry: AutoNode | None, behind: float = 0.0
    ) -> None:
        def arrives() -> None:
            about = self.devices.get(node)
            if entry is not None and about is None:
                return  # gossip of a node that is gone; it does not come back
            cut_off = self._is_cut and about is not None and about.side != to.side
            if cut_off if entry is not None else about is not None and not cut_off:
                return  # the network was cut, or healed, meanwhile
            if to.hears(node, version, entry):
                self._look_at(to, self.now + PAUSE)

        self.at(self.now + behind + self.chance.uniform(*self.gossip), arrives)

    def write(self, plan: PlanInForce) -> None:
        """Put a plan into the key."""
        self.plan = plan
        self.revision += 1
        for device in self.devices.values():
            lost = self.chance.random() < MISSED
            self._reads(device, self.chance.uniform(0, READ_EVERY if lost else READ_WITHIN))

    def _reads(self, device: Device, behind: float) -> None:
        def read() -> None:
            if device.side == 0 and device.revision != self.revision:
                device.plan, device.revision = self.plan, self.revision
                self._look_at(device, self.now)

        self.at(self.now + behind, read)

    # --- a node's look --------------------------------------------------------------------------

    def _look_at(self, device: Device, when: float) -> None:
        if device.looks_at <= when:
            return
        device.looks_at = when = max(when, device.born + LISTEN)

        def look() -> None:
            if device.looks_at == when and self.devices.get(device.node) is device:
                device.looks_at = inf
                self._look(device)

        self.at(when, look)

    def _look(self, device: Device) -> None:
        device.looks += 1
        if device.loads is not None and device.loads[1] <= self.now:
            device.serves |= device.loads[0]
            device.loads = None
        nodes = self._nodes(device)
        plan, before = device.plan, device.picture[device.node][1]
        if self.now - device.read_at >= READ_AGAIN and is_behind(plan, nodes):
            device.read_at = self.now
            self._reads(device, ANSWER)
        filled = {} if plan is None else self._fill(device, plan, nodes)
        slot = filled.get(device.node)
        device.claim = None if plan is None or slot is None else SlotClaim(plan.number, slot)
        peers = (node for node in nodes if node.node != device.node)
        hold = to_hold(plan, device.entry(), slot, peers, lambda n: self.stages[n - 1].need)
        device.serves &= hold
        if device.loads is None and hold - device.serves:
            device.loads = hold - device.serves, self.now + LOAD
        if device.loads is not None:
            self._look_at(device, device.loads[1])
        if device.entry() != before:
            self._tell(device)
            self._look_at(device, self.now + PAUSE)
        device.place = place_of(f"{MODEL}/{VERSION}", device.node, device.picture)
        if device.place >= PROPOSERS:
            return
        self._look_at(device, self.now + BEAT)
        self._propose(device, plan, filled, nodes)
        if device.place == 0 and plan is not None and not empty(plan, filled):
            self._replicate(device, plan, filled, nodes)

    def _nodes(self, device: Device) -> list[AutoNode]:
        """Its picture: one list for all that have the same."""
        key = device.digest, len(device.picture)
        if key not in self._pictures:
            if len(self._pictures) > MOST_KEPT:
                self._pictures.clear()
                self._filled.clear()
                self._drafts.clear()
            self._pictures[key] = [entry for _, entry in device.picture.values()]
        return self._pictures[key]

    def _fill(self, device: Device, plan: PlanInForce, nodes: list[AutoNode]) -> dict[str, int]:
        """The same picture is filled alike: it is reckoned once."""
        key = device.digest, len(nodes), device.revision
        if key not in self._filled:
            self._filled[key] = fill(plan, nodes)
        return self._filled[key]

    def _propose(
        self,
        device: Device,
        plan: PlanInForce | None,
        filled: dict[str, int],
        nodes: list[AutoNode],
    ) -> None:
        broken, present = "", inf
        if plan is None:
            broken = "no plan yet"
        elif lacks := empty(plan, filled):
            broken = f"nobody for slot {lacks[0]}"
        else:
            present = predicted(plan, filled, nodes, self.stages)
        if device.drafted_at <= self.now:
            device.drafts.ends(device.draft, device.drafted_at)
            device.drafted_at = inf
        if device.drafted_at == inf and device.drafts.is_due(
            nodes, (), self.stages, not broken, self.now
        ):
            device.drafts.begins(nodes, (), not broken, self.now)
            device.draft, device.drafted_at = self._draft(device, nodes), self.now + DRAFT
        if device.drafted_at < inf:
            self._look_at(device, device.drafted_at)
            return
        best = device.drafts.best(nodes, (), self.stages)
        if best is not None:
            best = with_replicas(best, plan)
        seen = Situation(plan, broken, present, best)
        reason = device.proposing.observe(seen, device.place, self.now)
        if not reason or best is None:
            return
        if device.side != 0 or device.revision != self.revision:
            self.refused += 1
            self._reads(device, 0.0)
            return
        number = next_number(0 if plan is None else plan.number)
        made = PlanInForce(MODEL, VERSION, number, best.slots, device.node, reason)
        self.plans.append((self.now, made))
        self.write(made)
        self._reads(device, 0.0)

    def _draft(self, device: Device, nodes: list[AutoNode]) -> Draft | None:
        self.drafted += 1
        key = device.digest, len(nodes)
        if key not in self._drafts:
            self._drafts[key] = Partition().draft(f"{MODEL}/{VERSION}", self.stages, nodes, ())
        return self._drafts[key]

    def _replicate(
        self, device: Device, plan: PlanInForce, filled: dict[str, int], nodes: list[AutoNode]
    ) -> None:
        if self.demand is None:
            return
        loads = slot_loads(plan, filled, self._states(plan, filled, nodes))
        wanted = device.scaling.observe(loads, self.now)
        found = change(plan, filled, nodes, loads, wanted)
        if found is None or device.side != 0 or self.plan is None:
            return
        if self.plan.number != plan.number or self.plan.frozen:
            return
        number = self.plan.of_stage(found.stage)
        assert number is not None
        slots = list(self.plan.slots)
        slots[number] = replace(slots[number], replicas=found.replicas)
        made = replace(self.plan, slots=tuple(slots), reason=found.why, proposer=device.node)
        self.write(made)
        self._reads(device, 0.0)

    def _states(
        self, plan: PlanInForce, filled: dict[str, int], nodes: list[AutoNode]
    ) -> list[StageState]:
        """How busy each stage is, by the demand of a moment ago: requests are shared alike."""
        assert self.demand is not None
        rate = self.demand(self.now - self.gossip[1])
        found = []
        for number, slot in enumerate(plan.slots):
            own = [
                node
                for node in nodes
                if filled.get(node.node) == number and node.serves.issuperset(slot.stages)
            ]
            used = [rate / len(own) * node.time_of(slot) / 1e6 for node in own]
            piled = 1.0 if any(share >= 1.0 for share in used) else 0.0  # seconds of work
            for stage in slot.stages:
                where = (plan.model, plan.version, stage)
                paces = [node.pace_us[stage - 1] for node in own]
                shares = [
                    min(1.0, share) * node.pace_us[stage - 1] / node.time_of(slot)
                    for share, node in zip(used, own, strict=True)
                ]
                pace = max(paces, default=0) / 1e6
                state = StageState(where, len(own), piled, busy=sum(shares), pace=pace)
                found.append(state)
        return found

    # --- what is so -----------------------------------------------------------------------------

    def alive(self) -> list[Device]:
        """Those that serve, the ones that are about to end included."""
        self.leaving = [each for each in self.leaving if each[0] > self.now]
        return [*self.devices.values(), *(device for _, device in self.leaving)]

    def holders(self) -> dict[int, list[str]]:
        """The nodes that claim each slot of the plan in force."""
        assert self.plan is not None
        claims: dict[int, list[str]] = {n: [] for n in range(len(self.plan.slots))}
        for device in self.devices.values():
            if device.claim is not None and device.claim.number == self.plan.number:
                claims[device.claim.slot].append(device.node)
        return claims

    def served(self) -> frozenset[int]:
        return frozenset().union(*(device.serves for device in self.alive()))

    def freeze(self) -> None:
        assert self.plan is not None
        self.write(replace(self.plan, frozen=True))
