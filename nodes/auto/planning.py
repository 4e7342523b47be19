"""The duty of a node of role `auto`: it fills its slot of the plan in force, and proposes plans.

The decisions are `swarm.auto`; here they meet gossip, the key of the plan, and this node's stages.
Desired state says which versions are served; each has a plan of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from nodes.auto.measuring import Measuring
from nodes.auto.own_link import OwnLink
from nodes.auto.own_room import STEP, OwnRoom
from nodes.auto.places import AutoPlaces
from nodes.auto.quota import cores_left
from nodes.auto.replicas import Replicas
from nodes.auto.searching import Searching
from nodes.connection.connection import Connection
from nodes.connection.events import REASON_LIMIT
from nodes.feature import Part
from nodes.low_priority import in_low_priority_thread
from nodes.versions.serving import Serving, by_stage, link_rate
from nodes.versions.versions import Versions
from shards.manifest import Manifest
from shards.runtimes.memory import need_of
from swarm.auto.advertised import fills_entry, pace_entry, uses_entry
from swarm.auto.auto_nodes import FleetRooms, auto_nodes, named_by_hand, rooms_of, views
from swarm.auto.document import PlanInForce, PlanSlot, outline
from swarm.auto.drafting import Drafting, first_draft
from swarm.auto.drafts import Draft, Planner, StageEstimate, predicted, with_replicas
from swarm.auto.giving_up import GivingUp, lacks
from swarm.auto.hanging import Hanging
from swarm.auto.links import KEY as LINK_KEY
from swarm.auto.links import NEAR
from swarm.auto.plan_store import PlanStore, StoredPlan
from swarm.auto.proposing import PROPOSERS, Proposing, Situation, place_of
from swarm.auto.rooms import RoomUse
from swarm.auto.slots import AutoNode, SlotClaim, fill, is_behind, to_hold
from swarm.auto.slowing import Slowing, each_run
from swarm.errors import SwarmError
from swarm.fleet.advertised import of_load
from swarm.gossip import Event
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.periodic import BEAT, next_beat
from swarm.tasks import told
from swarm.wire.codec_choice import candidates, results_rule
from swarm.wire.tensors import known_codecs

log = logging.getLogger("swarm.planning")

DECIDE_EVERY = 3 * BEAT  # seconds
READ_EVERY = 10.0  # seconds: an announcement may be lost …
READ_AGAIN = 1.0  # … and where others fill slots of a later plan, one was
LOOK_PAUSE = 0.05  # seconds: news that come together are one look
LISTEN_FIRST = 1.0  # seconds for which a new node takes no slot: it has not heard of all claims
PACE_EVERY = 3.0  # seconds between two looks at how long requests take here
FEW = 10  # requests between two looks that tell something
NO_ROOM_FOR = 60.0  # seconds for which a slot whose stages could not be loaded is not tried again
# Seconds between a claim and the loading, where others take from the same memory: twice as long as
# news take, so that of two claims which do not fit together one is withdrawn first.
CLAIMED_FOR = 2.0


@dataclass
class _Tended:
    """A version that this node may serve stages of."""

    stages: tuple[StageEstimate, ...]
    measured: asyncio.Task[list[int]]
    pace: list[int] = field(default_factory=list)
    stored: StoredPlan = field(default_factory=lambda: StoredPlan(None, 0))
    read_at: float = -inf
    slot: int | None = None
    claim: SlotClaim | None = None  # as gossiped
    hold: frozenset[int] = frozenset()  # stages that it shall serve here …
    loads: frozenset[int] = frozenset()  # … and those of them that it may
    grown_at: float = -inf  # when `hold` got stages last
    room: int = 0  # bytes for this version
    hanging: Hanging = field(default_factory=Hanging)
    left_out: frozenset[str] = frozenset()  # nodes that hang
    proposing: Proposing = field(default_factory=Proposing)
    drafts: Drafting = field(default_factory=Drafting)
    slowing: Slowing = field(default_factory=Slowing)
    replicas: Replicas = field(default_factory=Replicas)
    told: list[int] = field(default_factory=list)  # the pace that is gossiped
    batches: dict[int, list[int]] = field(default_factory=dict)  # as last seen, by stage
    looked_at: float = -inf
    lacking: str = ""  # why its plan cannot run
    no_room_until: float = -inf
    no_room_for: int = 0  # bytes
    drafting: asyncio.Task[Draft | None] | None = None
    has_no_room: bool = False
    giving_up: GivingUp = field(default_factory=GivingUp)

    def need(self, stages: Collection[int]) -> int:
        """Bytes of memory that stages take."""
        return sum(self.stages[stage - 1].need for stage in stages)

    def cancel(self) -> None:
        """End what goes on beside the looks."""
        self.measured.cancel()
        if self.drafting is not None:
            self.drafting.cancel()


class Planning(Part):
    """`run()` decides until cancelled; `on_event` takes the gossip's news.

    record(act, fields): keeps in the audit what this node proposed; None without an audit.
    """

    name = "planning"

    def __init__(
        self,
        connection: Connection,
        versions: Versions,
        places: AutoPlaces,
        planner: Planner | None = None,
        record: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self._mesh = connection.mesh
        self._config = connection.config
        self._peers = connection.peers
        self._members = connection.membership
        self._tell = connection.events.tell
        self._record = record
        self._versions = versions
        self._places = places
        self._planner = planner or Searching()
        self._plans = PlanStore(connection.mesh.link, connection.mesh.subjects)
        self._measuring = Measuring(versions.loader.artifacts, connection.config)
        self._tended: dict[str, _Tended] = {}
        self._own_room = OwnRoom(connection.config)
        self._pools: dict[str, int] = {}
        self._uses: list[list[Any]] | None = None
        self._own_link = OwnLink(self._link)
        self._link_told = NEAR
        self._began = 0.0
        self._news = asyncio.Event()
        self._changed = asyncio.Event()  # desired state, and plans
        places.on_failed = self._failed

    def on_event(self, event: Event) -> None:
        """A change in the mesh."""
        if event.kind != "updated" or not all(map(of_load, event.detail.split(","))):
            self._news.set()

    async def run(self) -> None:
        """Look at the mesh regularly, and at once where a node, a plan or a claim changed. After a
        defect it may be called again, and goes on with what it knew."""
        if not self._began:
            self._mesh.follow_config(self._config_changed)
            self._began = time.monotonic()
        probing = asyncio.create_task(self._own_link.run(), name="probing the link")
        probing.add_done_callback(told)
        try:
            while True:
                await asyncio.sleep(LOOK_PAUSE)
                self._news.clear()
                await self._look()
                try:
                    async with asyncio.timeout_at(next_beat(DECIDE_EVERY)):
                        await self._news.wait()
                except TimeoutError:
                    continue
        except asyncio.CancelledError:
            for tended in self._tended.values():
                tended.cancel()
            raise
        finally:
            probing.cancel()

    def _config_changed(self) -> None:
        self._changed.set()
        self._news.set()

    async def _look(self) -> None:
        changed = self._changed.is_set()
        self._changed.clear()
        present = {serving.info.version: serving for serving in self._versions.all()}
        self._write_device()
        for version in self._tended.keys() - present.keys():
            self._end(version)
        for version, serving in present.items():
            try:
                await self._tend(serving, changed)
            except SwarmError as error:  # of this version: the others are tended all the same
                log.info("the plan of %s is left as it is: %s", version, error)
                if version in self._tended:
                    self._tended[version].read_at = -inf

    def _write_device(self) -> None:
        """Tell of this node's link and memory."""
        self._write_link()
        self._write_uses()
        self._write_room(rooms_of(self._peers.alive()))

    def _end(self, version: str) -> None:
        tended = self._tended.pop(version)
        tended.cancel()
        self._places.forget(version)
        for key, _ in (self._fills(version, 0, 0), self._pace(version, [])):
            self._members.delete(key)

    def _fills(self, version: str, number: int, slot: int) -> tuple[str, Any]:
        return fills_entry(self._config.model_name, version, number, slot)

    def _pace(self, version: str, pace: Sequence[int]) -> tuple[str, Any]:
        return pace_entry(self._config.model_name, version, pace)

    async def _tend(self, serving: Serving, changed: bool) -> None:
        info, now = serving.info, time.monotonic()
        tended = self._tended.get(info.version) or await self._begin(serving)
        if not tended.measured.done():
            return
        if not tended.pace:
            self._has_measured(info.version, tended)
        self._write_pace(serving, tended, now)
        if changed or now - tended.read_at >= READ_EVERY:
            tended.stored = await self._plans.read(info.model, info.version)
            tended.read_at = now
        alive = self._peers.alive()
        rooms = rooms_of(alive)
        nodes = auto_nodes(alive, info.model, info.version, self._priority, rooms)
        if now - tended.read_at >= READ_AGAIN and is_behind(tended.stored.plan, nodes):
            tended.stored = await self._plans.read(info.model, info.version)
            tended.read_at = now
        named = named_by_hand(alive, info.model, info.version, info.last)
        me = next((node for node in nodes if node.node == self._peers.node), None)
        if me is None or now - self._began < LISTEN_FIRST:
            return  # it leaves, and has said so; or it has just come
        me = replace(me, serves=serving.stages)
        tended.room = me.room
        plan = tended.stored.plan
        others = [node for node in nodes if node.node != me.node]
        hanging = self._hanging(info.version, tended, others, now)
        filled = {} if plan is None else fill(plan, nodes, hanging)
        self._take(info.version, tended, me, others, filled.get(me.node))
        self._write_uses()  # what is claimed is told before it is loaded
        self._load(info.version, tended, serving.stages, rooms_of(self._peers.alive()), now)
        place = place_of(f"{info.model}/{info.version}", me.node, [node.node for node in nodes])
        nodes = [node for node in nodes if node.node not in hanging]
        filled = {node: slot for node, slot in filled.items() if node not in hanging}
        if plan is not None and (place == 0 or tended.slot is not None):
            tended.replicas.look(plan, info.last, filled, alive, now)
        if place >= PROPOSERS:
            tended.lacking = ""  # others look
        else:
            await self._propose(info.version, tended, place, nodes, rooms, named, filled)
            if place == 0 and plan is not None and not tended.lacking:
                await self._replicate(info.version, tended, plan, filled, nodes)

    def _hanging(
        self, version: str, tended: _Tended, others: Sequence[AutoNode], now: float
    ) -> frozenset[str]:
        """The other nodes that do not come to serve what they claim."""
        before = tended.left_out
        tended.left_out = tended.hanging.observe(tended.stored.plan, others, now)
        for node in tended.left_out - before:
            log.warning("%s: %s hangs while it loads: others take its place", version, node)
        return tended.left_out

    async def _begin(self, serving: Serving) -> _Tended:
        info = serving.info
        manifest = Manifest.from_json(await self._mesh.registry.manifest(info.model, info.version))
        stages = facts_of(manifest, info, self._config.codec)
        pools = rooms_of(self._peers.alive()).of(self._peers.node)
        left = min((pool.left() for pool in pools), default=inf)
        task = asyncio.create_task(self._measuring.pace(manifest, room=left), name="measuring")
        task.add_done_callback(lambda _: self._news.set())
        tended = self._tended[info.version] = _Tended(stages, task)
        return tended

    def _has_measured(self, version: str, tended: _Tended) -> None:
        """Raises what measuring raised: a defect."""
        tended.pace = tended.measured.result()
        log.info("%s: stages take %s us here", version, tended.pace)

    # --- the own slot -------------------------------------------------------------------------

    def _take(
        self,
        version: str,
        tended: _Tended,
        me: AutoNode,
        others: Sequence[AutoNode],
        slot: int | None,
    ) -> None:
        """Fill a slot, or none; hold what has to be held meanwhile."""
        plan = tended.stored.plan
        if slot != tended.slot:
            log.info("%s: fills slot %s", version, slot)
        tended.slot = slot
        claim = None if plan is None or slot is None else SlotClaim(plan.number, slot)
        if claim != tended.claim:  # each change hurries the gossip
            tended.claim = claim
            if claim is None:
                self._members.delete(self._fills(version, 0, 0)[0])
            else:
                self._members.set(*self._fills(version, claim.number, claim.slot))
        hold = to_hold(plan, me, slot, others, lambda n: tended.stages[n - 1].need)
        hold &= frozenset(range(1, len(tended.stages) + 1))
        if hold - tended.hold:
            tended.grown_at = time.monotonic()
        tended.hold = hold

    def _load(
        self,
        version: str,
        tended: _Tended,
        serves: frozenset[int],
        rooms: FleetRooms,
        now: float,
    ) -> None:
        """Load what shall be held, as soon as those that give way have let go."""
        who = self._peers.node, self._config.model_name, version
        wanted = tended.hold & (serves | tended.loads)
        lacks = tended.hold - wanted
        pools = rooms.of(self._peers.node)
        has_waited = now - tended.grown_at >= CLAIMED_FOR
        if lacks and (has_waited or not _is_shared(rooms, self._peers.node)):
            more = max(0, tended.need(tended.hold) - tended.need(wanted))
            if all(pool.may_load(*who, more) for pool in pools):
                wanted = tended.hold
        tended.loads = wanted
        self._places.want(version, wanted)
        self._write_uses()

    def _failed(self, version: str, stage: int, error: Exception) -> None:
        log.warning("stage %d is not served here: %s", stage, error)
        self._tell("rejected", {"version": version, "detail": str(error)[:REASON_LIMIT]})
        tended = self._tended.get(version)
        plan = None if tended is None else tended.stored.plan
        if tended is None or plan is None or tended.slot is None:
            return
        if tended.slot >= len(plan.slots):
            return  # another plan has just come: the next look takes a slot of it
        # Others see that it has no room, and give the slot to another node.
        tended.no_room_for = max(0, plan.slots[tended.slot].need - STEP)
        tended.no_room_until = time.monotonic() + NO_ROOM_FOR
        self._news.set()

    def _write_pace(self, serving: Serving, tended: _Tended, now: float) -> None:
        """Tell how long stages take here: as they were measured, or longer while this node is slow
        (`swarm.auto.slowing`), or has a part of a core."""
        if now - tended.looked_at < PACE_EVERY:
            return
        tended.looked_at = now
        taken = measured = 0.0
        for server in serving.servers:
            seen = list(server.stats.batch_sizes)
            before = tended.batches.get(server.stage, [0] * len(seen))
            tended.batches[server.stage] = seen
            fresh = [after - b for after, b in zip(seen, before, strict=True)]
            if sum(fresh) >= FEW:
                taken += server.stats.compute.percentile(0.5, now) * 1e6 / each_run(fresh)
                measured += tended.pace[server.stage - 1]
        slower = tended.slowing.observe(taken / measured if measured else None, now)
        factor = max(slower, self._config.threads / cores_left())
        pace = [round(us * factor) for us in tended.pace]
        if pace != tended.told:
            tended.told = pace
            self._members.set(*self._pace(serving.info.version, pace))

    def _link(self) -> Link:
        """The connection that the stages' messages go over."""
        served = self._versions.all()
        return self._mesh.routes_for(served[0].info).link if served else self._mesh.link

    def _write_link(self) -> None:
        """Tell what this node's link to the server brings and takes, where it is far."""
        seen = self._own_link.look(link_rate(by_stage(self._versions.all()).values()))
        if seen == self._link_told:
            return
        self._link_told = seen
        log.info("the link to the server is now %s", seen)
        if seen == NEAR:
            self._members.delete(LINK_KEY)
        else:
            self._members.set(LINK_KEY, [seen.round_trip_us, seen.down, seen.up])

    @property
    def _priority(self) -> int:
        """Of this node's model."""
        desired = self._versions.desired
        return 0 if desired is None else desired.priority

    def _uses_now(self) -> list[list[Any]]:
        model, node = self._config.model_name, self._peers.node
        found = []
        for serving in self._versions.all():
            version, held, claimed = serving.info.version, 0, 0
            if (tended := self._tended.get(version)) is not None:
                held = tended.need(serving.stages | tended.loads)
                slot = self._slot_of(tended)
                claimed = max(
                    held, tended.need(tended.hold | frozenset(slot.stages if slot else ()))
                )
            found.append(RoomUse(node, model, version, self._priority, claimed, held))
        return uses_entry(found)

    def _slot_of(self, tended: _Tended) -> PlanSlot | None:
        plan = tended.stored.plan
        if plan is None or tended.slot is None or tended.slot >= len(plan.slots):
            return None
        slot = plan.slots[tended.slot]
        return slot if slot.last <= len(tended.stages) else None

    def _write_uses(self) -> None:
        """Tell what each version takes here: others count it, wherever they take from the same
        memory."""
        uses = self._uses_now()
        if uses != self._uses:
            self._uses = uses
            self._members.set("uses", uses)

    def _write_room(self, rooms: FleetRooms) -> None:
        """Tell how much memory this node has for stages, what they take already included."""
        held = {name: sum(u.held for u in pool.uses) for name, pool in rooms.pools.items()}
        now = time.monotonic()
        least = min(
            (t.no_room_for for t in self._tended.values() if now < t.no_room_until), default=inf
        )
        node, host = self._peers.node, self._mesh.lender.host
        pools = self._own_room.look(node, host, held, least)
        if pools == self._pools:
            return
        self._pools = pools
        self._members.set("room", min(pools.values()))
        if self._own_room.is_shared():
            self._members.set("pools", [[name, size] for name, size in pools.items()])

    # --- another plan -------------------------------------------------------------------------

    async def _propose(
        self,
        version: str,
        tended: _Tended,
        place: int,
        nodes: Sequence[AutoNode],
        rooms: FleetRooms,
        named: Collection[int],
        filled: dict[str, int],
    ) -> None:
        model, now, plan = self._config.model_name, time.monotonic(), tended.stored.plan
        broken = tended.stored.refused or lacks(plan, len(tended.stages), filled, named)
        drafts, stages = tended.drafts, tended.stages
        if not broken:  # no model gives way for a gain
            nodes = [replace(node, room=min(node.room, node.spare)) for node in nodes]
        if tended.drafting is not None and tended.drafting.done():
            drafting, tended.drafting = tended.drafting, None
            drafts.ends(drafting.result(), now)
        if tended.drafting is None and drafts.is_due(nodes, named, stages, not broken, now):
            drafts.begins(nodes, named, not broken, now)
            key = f"{model}/{version}"
            seen = views(nodes, rooms, (model, version), self._priority, bool(broken))
            make = partial(first_draft, self._planner, key, stages, seen, named, not broken)
            tended.drafting = asyncio.create_task(in_low_priority_thread(make), name="draft")
            tended.drafting.add_done_callback(lambda _: self._news.set())
        if tended.drafting is not None:
            tended.lacking = broken and (tended.lacking or broken)
            return  # the looks go on meanwhile: slots are filled, claims are told
        best = drafts.best(nodes, named, stages)
        if best is not None:
            best = with_replicas(best, plan)
        beside = rooms.beside([node.node for node in nodes], model, self._priority)
        self._say_what_lacks(version, tended, broken, best is not None, beside)
        several = rooms.is_for_several(model)
        if tended.giving_up.observe(plan, not tended.has_no_room, several, now) and place == 0:
            best = Draft((), 0.0)
            reason = f"given up, its memory is for others: {tended.lacking}"
            await self._put(version, tended, best, reason, now)
            return
        present = inf
        if plan is not None and not broken:
            present = predicted(plan, filled, nodes, stages)
        reason = tended.proposing.observe(Situation(plan, broken, present, best), place, now)
        if reason and best is not None:
            await self._put(version, tended, best, reason, now)

    async def _put(
        self, version: str, tended: _Tended, draft: Draft, reason: str, now: float
    ) -> None:
        """Propose a draft in the place of the plan that was seen."""
        model, plan = self._config.model_name, tended.stored.plan
        made, was_first = await self._plans.propose(
            model, version, draft, self._peers.node, reason[:REASON_LIMIT], tended.stored
        )
        tended.stored = await self._plans.read(model, version)
        tended.read_at = now
        self._news.set()
        self._tell_of(made, plan, was_first)

    async def _replicate(
        self,
        version: str,
        tended: _Tended,
        plan: PlanInForce,
        filled: dict[str, int],
        nodes: Sequence[AutoNode],
    ) -> None:
        """Give a busy slot one of the nodes that fill none, or take one back."""
        found = tended.replicas.change(plan, filled, nodes)
        if found is None:
            return
        by = self._peers.node
        why = f"{found.replicas} nodes: {found.why}"[:REASON_LIMIT]
        tended.read_at = -inf
        made = await self._plans.replicate(
            plan.model, version, found.stage, found.replicas, by, why, plan.number
        )
        self._news.set()
        self._tell_of(made, plan)

    def _say_what_lacks(
        self,
        version: str,
        tended: _Tended,
        broken: str,
        helped: bool,
        beside: Sequence[str],
    ) -> None:
        """In the status; once in the log and as an event where no plan helps. beside: other models
        that take room and do not give way."""
        lacking, has_no_room = broken, bool(broken) and not helped
        if has_no_room:
            taken = f" beside {', '.join(beside)}" if beside else ""
            lacking = f"{broken}, and the nodes have no room for all stages{taken}: "
            lacking += "start more of them"
            lacking += ", or raise its priority (`swarm model priority`)" if beside else ""
            if not tended.has_no_room:
                log.warning("%s: %s", version, lacking)
                about = {"model": self._config.model_name, "version": version}
                self._tell("no-room", about | {"detail": lacking[:REASON_LIMIT]})
        tended.lacking, tended.has_no_room = lacking, has_no_room

    def _tell_of(
        self, plan: PlanInForce, before: PlanInForce | None, is_in_force: bool = True
    ) -> None:
        """In the log, as an event, and in the audit."""
        ranges = ", ".join(f"{slot.first}-{slot.last}" for slot in plan.slots)
        lost = "" if is_in_force else "another proposal was first: "
        log.info("plan %d of %s: %s%s: %s", plan.number, plan.version, lost, ranges, plan.reason)
        kind = "planned" if is_in_force else "proposed"
        about = {
            "model": plan.model,
            "version": plan.version,
            "plan": plan.number,
            "from": outline(before),
            "to": outline(plan),
        }
        if self._record is not None:
            self._record(kind, about | {"why": plan.reason})
        detail = f"{lost}stages {ranges}: {plan.reason}"[:REASON_LIMIT]
        self._tell(kind, about | {"detail": detail})

    def status(self) -> dict[str, Any]:
        """Fields of a status document."""
        plans = [self._status_of(v, tended) for v, tended in self._tended.items()]
        link = {} if self._link_told == NEAR else {"link": asdict(self._link_told)}
        wanted = [row for tended in self._tended.values() for row in _wanted_of(tended)]
        pools = {"pools": self._pools} if self._pools else {}
        return {"plans": plans, **pools, **link, **({"wanted": wanted} if wanted else {})}

    def _status_of(self, version: str, tended: _Tended) -> dict[str, Any]:
        document: dict[str, Any] = {
            "model": self._config.model_name,
            "version": version,
            "measured": tended.measured.done(),
            "pace_us": tended.told,
            "room_bytes": tended.room,
            "priority": self._priority,
            "held_bytes": tended.need(tended.loads),
        }
        if tended.lacking:
            document["lacking"] = tended.lacking
        plan = tended.stored.plan
        if plan is not None:
            document |= {"plan": plan.number, "frozen": plan.frozen, "reason": plan.reason}
            document["slots"] = [[slot.first, slot.last] for slot in plan.slots]
            document["replicas"] = [slot.replicas for slot in plan.slots]
            if tended.slot is not None and tended.slot < len(plan.slots):
                slot = plan.slots[tended.slot]
                document["slot"] = [slot.first, slot.last]
        return document


def _is_shared(rooms: FleetRooms, node: str) -> bool:
    """Whether other nodes take from a node's memories."""
    own = set(rooms.of_node.get(node, ()))
    return any(own.intersection(names) for other, names in rooms.of_node.items() if other != node)


def _wanted_of(tended: _Tended) -> list[dict[str, Any]]:
    """Of the slot that this node fills."""
    plan, slot = tended.stored.plan, tended.slot
    if plan is None or slot is None or slot >= len(plan.slots):
        return []
    return tended.replicas.rows(plan, slot)


def facts_of(manifest: Manifest, info: ModelInfo, codec: str) -> tuple[StageEstimate, ...]:
    """What is known of a version's stages beforehand. codec: the setting of this node, which is
    taken to be that of the others."""
    known = known_codecs()
    features = tuple(candidates(codec, info.codecs, known))
    results = tuple(candidates(*results_rule(codec, info.result_codecs), known))
    return tuple(
        StageEstimate(
            max(1, round(shard.compute_ms * 1e3)),
            need_of(shard.bytes),
            shard.bytes,
            sum(spec.nbytes for spec in shard.receives),
            sum(spec.nbytes for spec in shard.sends),
            features,
            results if shard is manifest.shards[-1] else features,
        )
        for shard in manifest.shards
        if shard.stage > 0
    )
