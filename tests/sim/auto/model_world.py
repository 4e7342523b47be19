"""Several models on one fleet in steps of time: a node for each model on each device, which decides
as a real one does (`swarm.auto`), by entries of gossip that are up to a step old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from swarm.auto.advertised import fills_entry, pace_entry, uses_entry
from swarm.auto.auto_nodes import auto_nodes, rooms_of, views
from swarm.auto.document import PlanInForce, next_number
from swarm.auto.drafting import first_draft
from swarm.auto.drafts import Draft, Partition, StageEstimate, predicted
from swarm.auto.giving_up import GivingUp, lacks
from swarm.auto.proposing import Proposing, Situation
from swarm.auto.rooms import RoomUse
from swarm.auto.slots import SlotClaim, fill, to_hold
from swarm.fleet.advertised import serves_entries
from swarm.gossip import PeerView

STEP, CLAIMED_FOR, LOADS_FOR = 0.5, 2.0, 1.0  # seconds
VERSION = "1"


@dataclass(frozen=True)
class SharedModel:
    """needs: bytes of each stage. pace: microseconds of each."""

    name: str
    priority: int
    needs: tuple[int, ...]
    pace: int = 2000

    @property
    def stages(self) -> tuple[StageEstimate, ...]:
        return tuple(StageEstimate(self.pace, need=need, file=need) for need in self.needs)


@dataclass
class ModelNode:
    """A node of one model on a device."""

    device: str
    model: SharedModel
    speed: float
    claim: SlotClaim | None = None
    hold: frozenset[int] = frozenset()
    loads: frozenset[int] = frozenset()
    serves: frozenset[int] = frozenset()
    grown_at: float = -inf
    done_at: float = inf
    proposing: Proposing = field(default_factory=Proposing)
    giving_up: GivingUp = field(default_factory=GivingUp)

    @property
    def node(self) -> str:
        return f"{self.device}-{self.model.name}"

    def need(self, stages: frozenset[int]) -> int:
        return sum(self.model.needs[stage - 1] for stage in stages)

    @property
    def held(self) -> int:
        return self.need(self.serves | self.loads)

    def entry(self, pool: int) -> dict[str, Any]:
        model = self.model
        pace = [round(model.pace / self.speed)] * len(model.needs)
        key, value = pace_entry(model.name, VERSION, pace)
        claimed = max(self.held, self.need(self.hold))
        use = RoomUse(self.node, model.name, VERSION, model.priority, claimed, self.held)
        found = {"role": "auto", "room": pool, "pools": [[self.device, pool]], key: value}
        found["uses"] = uses_entry([use])
        if self.claim is not None:
            fills, slot = fills_entry(model.name, VERSION, self.claim.number, self.claim.slot)
            found[fills] = slot
        return found | serves_entries((model.name, VERSION, stage) for stage in self.serves)


@dataclass
class ModelWorld:
    """`run(seconds)`. devices: bytes and speed of each. overcommitted: moments and devices that
    held more than they have. moves: how often a node took another slot. out_for: seconds for which
    each model has been out though there is room for it, without a break; longest_out: at most."""

    devices: dict[str, tuple[int, float]]
    models: Sequence[SharedModel]
    seed: int = 1
    now: float = 0.0
    plans: dict[str, PlanInForce] = field(default_factory=dict)
    overcommitted: list[tuple[float, str]] = field(default_factory=list)
    moves: int = 0
    planned: int = 0
    out_for: dict[str, float] = field(default_factory=dict)
    longest_out: float = 0.0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.nodes: list[ModelNode] = []
        for device, (pool, speed) in list(self.devices.items()):
            self.start(device, pool, speed)
        self._drafts: dict[Any, Any] = {}
        self._before: Mapping[str, PeerView] = {}
        self._present: Mapping[str, PeerView] = {}

    def kill(self, device: str) -> None:
        del self.devices[device]
        self.nodes = [node for node in self.nodes if node.device != device]

    def start(self, device: str, pool: int, speed: float) -> None:
        self.devices[device] = pool, speed
        self.nodes += [ModelNode(device, model, speed) for model in self.models]

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            self._before, self._present = self._present, self._told()
            nodes = list(self.nodes)
            self.chance.shuffle(nodes)
            for node in nodes:
                self._look(node)
            for device, (pool, _) in self.devices.items():
                if sum(node.held for node in self.nodes if node.device == device) > pool:
                    self.overcommitted.append((self.now, device))
            out = self.out_though_it_fits()
            self.out_for = {name: self.out_for.get(name, 0.0) + STEP for name in out}
            self.longest_out = max(self.longest_out, *self.out_for.values(), 0.0)

    def _told(self) -> dict[str, PeerView]:
        return {
            node.node: PeerView(node.node, "alive", 1, 1, node.entry(self.devices[node.device][0]))
            for node in self.nodes
        }

    def _heard(self, me: ModelNode) -> list[PeerView]:
        """What a node knows: of itself all, of each other one its entry of now or of a step ago."""
        found = {}
        for name, view in self._present.items():
            late = self._before.get(name)
            found[name] = late if late is not None and self.chance.random() < 0.5 else view
        own = me.entry(self.devices[me.device][0])
        found[me.node] = PeerView(me.node, "alive", 1, 1, own)
        return list(found.values())

    def _look(self, me: ModelNode) -> None:
        model, peers = me.model, self._heard(me)
        if me.done_at <= self.now:
            me.serves |= me.loads
            me.done_at = inf
        rooms = rooms_of(peers)
        nodes = auto_nodes(peers, model.name, VERSION, model.priority, rooms)
        plan = self.plans.get(model.name)
        filled = {} if plan is None else fill(plan, nodes)
        slot = filled.get(me.node)
        claim = None if plan is None or slot is None else SlotClaim(plan.number, slot)
        if claim != me.claim:
            self.moves, me.claim = self.moves + 1, claim
        own = next(node for node in nodes if node.node == me.node)
        others = [node for node in nodes if node.node != me.node]
        hold = to_hold(plan, own, slot, others, lambda n: model.needs[n - 1])
        if hold - me.hold:
            me.grown_at = self.now
        me.hold = hold
        me.serves &= hold
        wanted = hold & (me.serves | me.loads)
        more = me.need(hold) - me.need(wanted)
        if hold - wanted and self.now - me.grown_at >= CLAIMED_FOR:
            told = [p for p in peers if p.node != me.node]
            told.append(PeerView(me.node, "alive", 1, 1, me.entry(self.devices[me.device][0])))
            pools = rooms_of(told).of(me.node)
            if all(pool.may_load(me.node, model.name, VERSION, more) for pool in pools):
                wanted, me.done_at = hold, self.now + LOADS_FOR
        me.loads = wanted
        self._propose(me, plan, filled, nodes, rooms)

    def _propose(self, me: ModelNode, plan: Any, filled: Any, nodes: Any, rooms: Any) -> None:
        model = me.model
        if me.node != min(node.node for node in nodes):
            return
        broken, present = lacks(plan, len(model.needs), filled), inf
        if not broken:
            present = predicted(plan, filled, nodes, model.stages)
        seen = views(nodes, rooms, (model.name, VERSION), model.priority, bool(broken))
        key = model.name, tuple(map(tuple, seen))
        if key not in self._drafts:
            draft = first_draft(Partition(), model.name, model.stages, seen, (), not broken)
            self._drafts[key] = draft
        best = self._drafts[key]
        several = rooms.is_for_several(model.name)
        if me.giving_up.observe(plan, not broken or best is not None, several, self.now):
            reason, best = "given up", Draft((), 0.0)
        else:
            reason = me.proposing.observe(Situation(plan, broken, present, best), 0, self.now)
        if reason and best is not None and self.plans.get(model.name) is plan:
            self.planned += 1
            number = next_number(0 if plan is None else plan.number)
            self.plans[model.name] = PlanInForce(model.name, VERSION, number, best.slots)

    def placed(self) -> set[str]:
        """The models all of whose stages are served."""
        served: dict[str, set[int]] = {}
        for node in self.nodes:
            served.setdefault(node.model.name, set()).update(node.serves)
        return {m.name for m in self.models if len(served.get(m.name, ())) == len(m.needs)}

    def out_though_it_fits(self) -> set[str]:
        """The models that are not placed, and fit beside those of their priority and above that
        are: who is not placed itself leaves its room to others."""
        placed, found = self.placed(), set()
        for model in self.models:
            if model.name in placed:
                continue
            left = {device: pool for device, (pool, _) in self.devices.items()}
            for node in self.nodes:
                if node.model.name in placed and node.model.priority >= model.priority:
                    left[node.device] -= node.held
            if fits(model.needs, list(left.values())):
                found.add(model.name)
        return found


def fits(needs: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether stages fit into rooms: a run of stages in each, in any order."""
    if not needs:
        return True
    return any(
        sum(needs[:count]) <= room and fits(needs[count:], [*rooms[:at], *rooms[at + 1 :]])
        for at, room in enumerate(rooms)
        for count in range(1, len(needs) + 1)
    )
