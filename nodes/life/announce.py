"""A node's own entry in the gossip, and what it does about the entries of others."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

from nodes.life.config import NodeConfig
from nodes.life.router import Router
from nodes.life.serving import Serving
from nodes.stage.server import StageServer
from swarm.errors import SwarmError
from swarm.fleet.advertised import StagePeer, Where, load_entries, of_load, serves_entries, serving
from swarm.fleet.membership import Membership
from swarm.flow.ack_wait import ack_wait_for
from swarm.gossip import Event
from swarm.lanes import MOST_ACK_WAIT, Lane
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.periodic import BEAT, next_beat
from swarm.priorities import FALLBACK, PRIMARY
from swarm.routing.rendezvous import rendezvous

log = logging.getLogger("swarm.node")

LOAD_EVERY = 3 * BEAT  # seconds; a load that moved by less than a quarter is not worth telling
ADAPT_EVERY = 5.0  # seconds between looks at ack_wait and at the server's clock
TOLD = {"joined", "left", "suspected", "died", "refuted", "returned", "duplicate"}


class Announcer:
    """`run()` keeps this node's gossip current, and its lanes in tune with its peers'."""

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        membership: Membership,
        router: Router,
        servings: Callable[[], list[Serving]],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._mesh = mesh
        self._config = config
        self._members = membership
        self._router = router
        self._servings = servings
        self._tell = tell
        self._told_load: dict[Where, list[int]] = {}
        self._announced: Set[Where] = set()  # a version that still loads is not
        self._keys: Set[str] = set()  # of gossip: what is served, and its loads
        self._written = False  # all of it
        self._covering: set[tuple[str, int]] = set()
        self._adopted: set[tuple[str, int, str]] = set()  # version, stage, node
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self.announce()
        adapted = time.monotonic()
        while True:
            await self._cover_until(next_beat(LOAD_EVERY))
            self._announce_load()
            await self._cover()
            try:
                await self._tend_lanes()
                if time.monotonic() - adapted > ADAPT_EVERY:
                    adapted = time.monotonic()
                    await self._adapt()
            except SwarmError as error:
                log.info("lanes not adapted: %s", error)

    async def _cover_until(self, moment: float) -> None:
        """Wait until loop time `moment`; a death or a return meanwhile is acted on at once."""
        while True:
            try:
                async with asyncio.timeout_at(moment):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._changed.clear()  # not later: what changes meanwhile is acted on next
            await self._cover()

    # --- telling ------------------------------------------------------------------------

    def announce(self, draining: bool = False) -> None:
        """Write who and what this node is."""
        self._members.set("role", self._config.role)
        self._members.set("priority", self._config.priority)
        self._members.set("host", self._mesh.claims.host)
        self._members.set("inbox", self._mesh.inbox)
        self._members.set("device", "cpu")
        self._members.set("draining", draining)
        self._announced = set(self._served())
        self._write()

    def _announce_load(self) -> None:
        now = time.monotonic()
        loads: dict[Where, list[int]] = {}
        for where, server in self._served().items():
            numbers, told = load_of(server, now), self._told_load.get(where)
            loads[where] = numbers if told is None or _moved(told, numbers) else told
        if loads != self._told_load:
            self._told_load = loads
            self._members.set("memory", memory_free())
        elif self._written:
            return  # as it was told
        self._write()

    def _served(self) -> dict[Where, StageServer]:
        return {
            (server.info.model, server.info.version, server.stage): server
            for serving_ in self._servings()
            for server in serving_.servers
        }

    def _write(self) -> None:
        """Gossip what is served and how busy it is; no longer what is not served any more."""
        told = {where: load for where, load in self._told_load.items() if where in self._announced}
        serves, loads = serves_entries(self._announced), load_entries(told)
        for key in self._keys - serves.keys() - loads.keys():
            self._members.delete(key)
        self._keys = serves.keys() | loads.keys()
        if self._set(serves):
            self._written = self._set(loads)
            return
        # What is served comes before how busy it is: perhaps there is room without the loads.
        self._written = False
        for key in loads:
            self._members.delete(key)
        self._set(serves)

    def _set(self, entries: Mapping[str, object]) -> bool:
        written = [self._members.set(key, value) for key, value in entries.items()]
        return all(written)

    def on_event(self, event: Event) -> None:
        """A change in the mesh: one of the living tells the dashboards."""
        if event.kind != "updated" or not all(map(of_load, event.detail.split(","))):
            self._mesh.placement.forget()
        if event.kind == "duplicate":
            log.error("two processes use the node id %s: %s", event.node, event.detail)
        if event.kind not in TOLD:
            return
        self._changed.set()
        log.info("%s %s %s", event.node, event.kind, event.detail)
        alive = [peer.node for peer in self._members.alive()]
        if rendezvous(event.node, alive)[:1] == [self._members.node]:
            detail = {"subject": event.node, "detail": event.detail}
            self._tell(event.kind, detail)

    # --- acting -------------------------------------------------------------------------

    def peers(self, info: ModelInfo, stage: int) -> list[StagePeer]:
        """The living nodes that serve a stage, this one included."""
        return serving(self._members.alive(), info.model, info.version, stage)

    async def _cover(self) -> None:
        """A node that is not a primary serves fast mode only while no primary does."""
        if self._config.priority == PRIMARY:
            return
        for serving_ in self._servings():
            for stage, fresh in serving_.fresh.items():
                peers = self.peers(serving_.info, stage)
                needed = not any(
                    p.priority < self._config.priority and not p.draining for p in peers
                )
                key = (serving_.info.version, stage)
                if needed and key not in self._covering:
                    self._covering.add(key)
                    fresh.open()
                    if self._config.priority == FALLBACK:
                        self._tell("took-over", {"stage": stage, "model": serving_.info.model})
                elif not needed and key in self._covering:
                    self._covering.discard(key)
                    await fresh.close()
                    self._tell("gave-back", {"stage": stage, "model": serving_.info.model})

    async def _tend_lanes(self) -> None:
        """Own lanes where the policy wants them; the dead's lanes, until they are empty."""
        states = {node: peer.state for node, peer in self._members.view().items()}
        gone = [node for node, state in states.items() if state in ("dead", "left")]
        # Each once: their tombstones stay for an hour after the lane was emptied and deleted.
        self._adopted = {entry for entry in self._adopted if entry[2] in gone}
        for serving_ in self._servings():
            if self._router.uses_own_lanes(serving_.info.model):
                for server in serving_.servers:
                    if self._config.priority == PRIMARY:
                        serving_.open_lane(server, self._members.node)
                    self._adopt(serving_, server, gone)
            await serving_.close_idle_lanes(self._members.node)

    def _adopt(self, serving_: Serving, server: StageServer, gone: list[str]) -> None:
        """The lanes of gone nodes that fall to this one."""
        peers = [p for p in self.peers(serving_.info, server.stage) if not p.draining]
        best = min((p.priority for p in peers), default=PRIMARY)
        heirs = [p.node for p in peers if p.priority == best]
        for node in gone:
            entry = (serving_.info.version, server.stage, node)
            # Everybody computes the same survivor: no election, no messages.
            if entry not in self._adopted and rendezvous(node, heirs)[:1] == [self._members.node]:
                self._adopted.add(entry)
                serving_.open_lane(server, node)

    async def _adapt(self) -> None:
        """Keep ack_wait a few times what a message takes; one primary of each stage does it."""
        now = time.monotonic()
        for serving_ in self._servings():
            for server in serving_.servers:
                peers = self.peers(serving_.info, server.stage)
                primaries = [p.node for p in peers if p.priority == PRIMARY]
                for lane in server.lanes:
                    await lane.refresh()
                    # From arrival to ack (or handing over): a busy loop counts, not only the run.
                    p99 = lane.holding.percentile(0.99, now)
                    wanted = ack_wait_for(p99, ceiling=MOST_ACK_WAIT, current=lane.ack_wait)
                    if primaries and min(primaries) == self._members.node and p99:
                        await self._set_ack_wait(server, lane, wanted)

    async def _set_ack_wait(self, server: StageServer, lane: Lane, wanted: float) -> None:
        if abs(wanted - lane.ack_wait) > 1e-3:
            log.info("stage %d: ack_wait is now %.3f s", server.stage, wanted)
            await lane.set_ack_wait(wanted)


def load_of(server: StageServer, now: float) -> list[int]:
    """A stage's load as it is gossiped (see `swarm.fleet.advertised`)."""
    stats = server.stats
    numbers = [server.waiting, server.queued]
    for window in (stats.compute, stats.queue):
        numbers += [
            int(window.ewma * 1e6),
            int(window.percentile(0.5, now) * 1e6),
            int(window.percentile(0.99, now) * 1e6),
        ]
    return numbers


def _moved(told: list[int], now: list[int]) -> bool:
    """Whether a load changed enough to be told: by a quarter, and by more than noise."""
    return any(
        abs(b - a) > max(2 if index < 2 else 200, a // 4)
        for index, (a, b) in enumerate(zip(told, now, strict=True))
    )


def memory_free() -> int:
    """Bytes of memory that are free on this host; 0 where it is not told."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
