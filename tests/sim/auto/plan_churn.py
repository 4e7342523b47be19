"""A large mesh that plans itself, in virtual time: nodes join, leave and die, links fade, nodes
slow down, load swings. What is counted is what a fleet may never do too often or for too long.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from sim.auto.plan_world import BEAT, MODEL, VERSION, Device, World
from swarm.auto.advertised import fills_entry, pace_entry
from swarm.auto.auto_nodes import auto_nodes, named_by_hand
from swarm.auto.drafts import Partition, StageEstimate, predicted
from swarm.auto.links import NEAR, NodeLink
from swarm.auto.proposing import place_of
from swarm.auto.replicating import change, slot_loads
from swarm.auto.slots import fill, to_hold
from swarm.fleet.advertised import (
    busy_entries,
    load_entries,
    serves_entries,
)
from swarm.fleet.scaling import Scaling
from swarm.fleet.warm_pool import states_of
from swarm.gossip import PeerView

MBIT = 125_000  # bytes a second
FAST, FADED = NodeLink(4000, 100 * MBIT, 100 * MBIT), NodeLink(10_000, 5 * MBIT, 5 * MBIT)
STAGES = 16
SETTLES = 20.0  # seconds of the first placement
SOON = 120.0  # seconds within which a node that is back at its former slot went to and fro
SWINGS = 1200.0  # seconds of a swing of load, by `SWING` of its mean
SWING = 0.8
# A minute of 500 devices; smaller fleets have less, times the `pace`.
JOINS, LEAVES, DEATHS, FADES, SLOWED = 3.0, 1.5, 1.5, 1.0, 0.5
VARIED = 30.0  # links whose figures move by up to `BY`
BY = 0.3
FADES_FOR = (60.0, 180.0)  # seconds
REPEATS = 20  # of what is timed

Range = tuple[int, int]


def stages(chance: Random) -> tuple[StageEstimate, ...]:
    """Of 1.5 to 4 ms, with 30 KB between them."""
    return tuple(
        StageEstimate(chance.randint(1500, 4000), 10, 1_000_000, receives=30_000, sends=30_000)
        for _ in range(STAGES)
    )


@dataclass
class Churn:
    """`run(minutes)`, and then `figures()`.

    unfilled: seconds from the death of a node with a slot until each slot is served by a node that
    claims it. outages: seconds for which a stage was served by nobody. apart: for which nodes knew
    different plans; crowded: for which more nodes than it should have claimed a slot. moves: when a
    node took another slot.
    """

    devices: int
    seed: int = 1
    pace: float = 1.0
    unfilled: list[float] = field(default_factory=list)
    outages: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    crowded: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    to_and_fro: list[str] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.world = World(
            stages(self.chance), demand=self._demand, on_tick=self._tick, seed=self.seed
        )
        self._since: dict[object, float] = {}
        self._deaths: list[float] = []
        self._held: dict[str, deque[tuple[float, Range]]] = {}
        self._joined = 0
        self._looks_of_gone = 0
        for _ in range(self.devices):
            self._join()

    def run(self, minutes: float) -> None:
        self.world.run(SETTLES)
        scale = 60.0 * 500 / self.devices / self.pace
        for name, rate, act in (
            ("joined", JOINS, self._join),
            ("left", LEAVES, self._leave),
            ("died", DEATHS, self._die),
            ("faded", FADES, self._fade),
            ("slowed", SLOWED, self._slow),
            ("varied", VARIED, self._vary),
        ):
            self._often(name, scale / rate, act)
        self.world.run(60.0 * minutes)

    def _demand(self, now: float) -> float:
        return 0.6 * self.devices * (1 + SWING * math.sin(2 * math.pi * now / SWINGS))

    def _often(self, name: str, every: float, act: Callable[[], None]) -> None:
        def happens() -> None:
            self.events[name] = self.events.get(name, 0) + 1
            act()
            self._often(name, every, act)

        self.world.at(self.world.now + self.chance.expovariate(1 / every), happens)

    def _one(self) -> str:
        """A node; every other time one that fills a slot."""
        devices = list(self.world.devices.values())
        busy = [device for device in devices if device.claim is not None]
        return self.chance.choice(busy if busy and self.chance.random() < 0.5 else devices).node

    def _join(self) -> None:
        self._joined += 1
        speed = self.chance.choice([0.25, 0.5, 1.0, 1.0, 2.0])
        link = FAST if self.chance.random() < 0.1 else NEAR
        room = self.chance.choice([30, 40, 60])
        self.world.join(f"auto-{self._joined:04d}", room, speed, link)

    def _leave(self) -> None:
        self._gone(self._one(), self.world.leave)

    def _die(self) -> None:
        node = self._one()
        if self.world.devices[node].claim is not None:
            self._deaths.append(self.world.now)
        self._gone(node, self.world.die)

    def _gone(self, node: str, act: Callable[[str], None]) -> None:
        self._looks_of_gone += self.world.devices[node].looks
        act(node)

    def _fade(self) -> None:
        node = self._one()
        before = self.world.devices[node].link
        self.world.fade(node, FADED)

        def is_good_again() -> None:
            if node in self.world.devices:
                self.world.fade(node, before)

        self.world.at(self.world.now + self.chance.uniform(*FADES_FOR), is_good_again)

    def _vary(self) -> None:
        """A node behind a link, which carries the same, measures another figure."""
        far = [device for device in self.world.devices.values() if device.link != NEAR]
        if far:
            device = self.chance.choice(far)
            rate = (FADED if device.link.down < FAST.down / 4 else FAST).down
            seen = round(rate * self.chance.uniform(1 - BY, 1 + BY))
            self.world.fade(device.node, replace(device.link, down=seen))

    def _slow(self) -> None:
        self.world.slow(self._one(), self.chance.choice([2.0, 4.0]))

    # --- what is so, each tick ------------------------------------------------------------------

    def _tick(self) -> None:
        world = self.world
        if world.plan is None or world.now < SETTLES:
            return
        served, claimed = set[int](), dict[int, int]()
        full, numbers = set[int](), set[int]()
        for device in world.alive():
            served |= device.serves
        for device in world.devices.values():
            if device.revision and device.plan is not None:
                numbers.add(device.plan.number)
            claim = device.claim
            if claim is None or claim.number != world.plan.number:
                continue
            slot = world.plan.slots[claim.slot]
            claimed[claim.slot] = claimed.get(claim.slot, 0) + 1
            if device.serves.issuperset(slot.stages):
                full.add(claim.slot)
            self._holds(device, (slot.first, slot.last))
        self.replicas.append(sum(claimed.values()))
        for stage in range(1, STAGES + 1):
            self._lasts(("outage", stage), stage not in served, self.outages)
        self._lasts("apart", len(numbers) > 1, self.apart)
        for number, slot in enumerate(world.plan.slots):
            crowded = claimed.get(number, 0) > slot.replicas
            self._lasts(("crowded", number), crowded, self.crowded)
        if len(full) == len(world.plan.slots):
            self.unfilled += [world.now - at for at in self._deaths]
            self._deaths.clear()

    def _lasts(self, what: object, is_so: bool, ended: list[float]) -> None:
        if is_so:
            self._since.setdefault(what, self.world.now)
        elif what in self._since:
            ended.append(self.world.now - self._since.pop(what))

    def _holds(self, device: Device, held: Range) -> None:
        row = self._held.setdefault(device.node, deque(maxlen=8))
        if row and row[-1][1] == held:
            return
        now = self.world.now
        if any(before == held and now - at < SOON for at, before in row):
            self.to_and_fro.append(device.node)
        if row or now > SETTLES:
            self.moves.append(now)
        row.append((now, held))

    # --- figures --------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """What was counted, as a document. Seconds, unless it is said."""
        world, minutes = self.world, self.world.now / 60
        better = [at for at, plan in world.plans if "shorter" in plan.reason]
        every = [at for at, _ in world.plans]
        return {
            "devices": self.devices,
            "minutes": round(minutes, 1),
            "events": dict(sorted(self.events.items())),
            "plans": len(world.plans),
            "plans_for_a_gain": len(better),
            "least_between_gains_s": round(least_between(better, every), 1),
            "proposals_refused": world.refused,
            "moves_a_minute": round(len(self.moves) / minutes, 2),
            "moves_a_minute_most": most_within(self.moves, 60.0),
            "to_and_fro": len(self.to_and_fro),
            "nodes_with_a_slot": [min(self.replicas), max(self.replicas)],
            "deaths_with_a_slot": len(self.unfilled) + len(self._deaths),
            "not_filled_again": len(self._deaths),
            "filled_again_s": spread(self.unfilled),
            "stage_unserved_s": spread(self.outages),
            "plans_apart_s": spread(self.apart),
            "too_many_at_a_slot_s": spread(self.crowded),
        }

    def looks_a_second(self) -> float:
        """Of a node, by news and by beats."""
        looks = self._looks_of_gone + sum(device.looks for device in self.world.devices.values())
        return looks / self.devices / self.world.now + 1 / BEAT


def least_between(better: Sequence[float], every: Sequence[float]) -> float:
    """From any plan to a next one that only gains."""
    return min((b - a for a, b in pairwise(every) if b in better), default=math.inf)


def most_within(moments: Sequence[float], seconds: float) -> int:
    """The largest number of moments in any such time."""
    ordered, most, first = sorted(moments), 0, 0
    for last, at in enumerate(ordered):
        while at - ordered[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and longest."""
    ordered = sorted(seconds)
    if not ordered:
        return {"times": 0}
    return {"times": len(ordered), "p50": ordered[len(ordered) // 2], "longest": ordered[-1]}


# --- processor time -------------------------------------------------------------------------


def costs(world: World) -> dict[str, float]:
    """Milliseconds of a processor that one look takes, from values as they are gossiped: of any
    node, what one that may propose adds to it, and what the first of those adds; and of a draft."""
    plan = world.plan
    assert plan is not None
    peers, stages = views(world), world.stages
    me = next(iter(world.devices))
    key, last = f"{MODEL}/{VERSION}", len(stages)
    nodes = auto_nodes(peers, MODEL, VERSION)
    filled = fill(plan, nodes)
    scaling = Scaling()
    where = [(MODEL, VERSION, stage) for stage in range(1, last + 1)]

    def look() -> None:
        found = auto_nodes(peers, MODEL, VERSION)
        named_by_hand(peers, MODEL, VERSION, last)
        slots = fill(plan, found)
        own = next(node for node in found if node.node == me)
        others = [node for node in found if node.node != me]
        to_hold(plan, own, slots.get(me), others, lambda stage: stages[stage - 1].need)
        place_of(key, me, [node.node for node in found])

    def replicate() -> None:
        loads = slot_loads(plan, filled, states_of(peers, where))
        change(plan, filled, nodes, loads, scaling.observe(loads, time.monotonic()))

    return {
        "look_ms": took(look),
        "proposer_ms": took(lambda: predicted(plan, filled, nodes, stages)),
        "first_ms": took(replicate),
        "draft_ms": took(lambda: Partition().draft(key, stages, nodes, ())),
    }


def took(act: Callable[[], object]) -> float:
    """Milliseconds of a processor, the median of several."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return round(sorted(times)[REPEATS // 2] * 1e3, 3)


def views(world: World) -> list[PeerView]:
    """The devices as gossip tells of them."""
    found = []
    for device in world.devices.values():
        values: dict[str, object] = {"role": "auto", "room": device.room, "host": device.node}
        values |= dict([pace_entry(MODEL, VERSION, device.pace)])
        where = [(MODEL, VERSION, stage) for stage in device.serves]
        values |= serves_entries(where) | busy_entries(dict.fromkeys(where, 0.4))
        values |= load_entries(dict.fromkeys(where, (0, 1, 2000, 0, 0, 0, 0, 0)))
        if device.claim is not None:
            values |= dict([fills_entry(MODEL, VERSION, *astuple(device.claim))])
        if device.link != NEAR:
            values["link"] = [device.link.round_trip_us, device.link.down, device.link.up]
        found.append(PeerView(device.node, "alive", 1, 1, values))
    return found


def run_report(
    churn: Churn, minutes: float, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """One run, with the processor's time of a device's decisions in percent of a core: of any
    node, and of the one that looks for all, if it made as many drafts as it may."""
    progress(f"{churn.devices} devices, {minutes:g} minutes of virtual time …")
    began = time.process_time()
    churn.run(minutes)
    spent = time.process_time() - began
    looks, each = churn.looks_a_second(), costs(churn.world)
    first = looks * sum(each[name] for name in ("look_ms", "proposer_ms", "first_ms"))
    drafts = churn.world.drafted / 3 / churn.world.now  # of three that may propose
    return {
        **churn.figures(),
        "looks_a_second": round(looks, 2),
        "drafts_a_second": round(drafts, 2),
        **each,
        "core_percent": round(looks * each["look_ms"] / 10, 2),
        "core_percent_first": round((first + drafts * each["draft_ms"]) / 10, 2),
        "simulated_in_s": round(spent, 1),
    }
