"""A node takes over from others that die, and gives back to others that return.

Three duties follow from the gossip. A node that is not a primary serves fast mode while no primary
does. The lanes of a dead node fall to one survivor, which every node computes alike, without an
election. One primary of each stage keeps the lane's `ack_wait` in tune with the pace of its work,
and one of the first stage keeps the lanes' depth in tune with the budgets in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from weakref import WeakSet

from nodes.connection.connection import Connection
from nodes.limits import lane_options
from nodes.stage.server import StageServer
from nodes.versions.serving import Serving
from swarm.errors import SwarmError
from swarm.fleet.advertised import StagePeer, of_load
from swarm.fleet.priorities import PRIMARY
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.gossip import Event
from swarm.mesh import Mesh
from swarm.periodic import BEAT, next_beat
from swarm.routing.rendezvous import rendezvous
from swarm.subjects import api
from swarm.transport.lane import (
    MOST_ACK_WAIT,
    Budgets,
    Lane,
    Tuning,
    depth_for,
    follow_depth,
    measured_work,
)

log = logging.getLogger("swarm.node")

# Gossip's events that dashboards hear of; the others are about loads.
PUBLISHED_EVENTS = {"joined", "left", "suspected", "died", "refuted", "returned", "duplicate"}


# How often a node tends its lanes. All times are in seconds.
TEND_EVERY = 3 * BEAT  # between two visits of all lanes; deaths and returns are acted on at once
ADAPT_EVERY = 5.0  # between two measurements of `ack_wait` and of the lanes' depth
# Nodes that watch one node whose work they would take over: they see its crash at once.
WATCHERS = 2


class Takeover:
    """`run()` acts until cancelled; `on_event` takes the gossip's news. clock: seconds, that of its
    lanes."""

    def __init__(
        self,
        connection: Connection,
        servings: Callable[[], list[Serving]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = connection.mesh
        self._config = connection.config
        self._members = connection.membership
        self._peers = connection.peers
        self._router = connection.router
        self._tell = connection.events.tell
        self._servings = servings
        self._clock = clock
        self._tunings: dict[Lane, Tuning] = {}
        self._depth = LaneDepth(connection.mesh, connection.config.budget)
        # By the serving object, not by its version: a version that is loaded again starts with fast
        # mode closed.
        self._covering: WeakSet[StageServer] = WeakSet()
        self._adopted: set[tuple[str, int, str]] = set()  # version, stage, gone node
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Act on the gossip, and tend the lanes, until cancelled."""
        adapted = self._clock()
        while True:
            await self.react_until(next_beat(TEND_EVERY))
            await self._cover()
            try:
                await self.tend_lanes()
                if self._clock() - adapted > ADAPT_EVERY:
                    adapted = self._clock()
                    await self._adapt_settings()
            except SwarmError as error:
                log.info("lanes are left as they are: %s", error)

    def on_event(self, event: Event) -> None:
        """A change in the mesh. One of the living nodes publishes it for dashboards."""
        if event.kind != "updated" or not all(map(of_load, event.detail.split(","))):
            self._mesh.placement.forget()
        if event.kind == "duplicate":
            log.error("two processes use the node id %s: %s", event.node, event.detail)
        if event.kind not in PUBLISHED_EVENTS:
            return
        self._news.set()
        log.info("%s %s %s", event.node, event.kind, event.detail)
        alive = [peer.node for peer in self._peers.alive()]
        if rendezvous(event.node, alive)[:1] == [self._peers.node]:
            self._tell(event.kind, {"subject": event.node, "detail": event.detail})

    # --- fast mode --------------------------------------------------------------------------

    async def react_until(self, moment: float) -> None:
        """Wait until `moment` (event loop time); a death or a return meanwhile is acted on at
        once."""
        while True:
            try:
                async with asyncio.timeout_at(moment):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()  # first: news that come meanwhile are acted on next
            await self._cover()

    async def _cover(self) -> None:
        """Serve fast mode while every node of a better priority is gone."""
        if self._config.priority == PRIMARY:
            return
        watched: set[str] = set()
        for serving in self._servings():
            for server in serving.servers:
                stage, fresh = server.stage, server.source.fast
                peers = self._peers.serving(serving.info, stage)
                watched |= watched_by(self._peers.node, peers, self._config.priority, WATCHERS)
                better = self._better(peers)
                detail = {"stage": stage, "model": serving.info.model}
                if not better and server not in self._covering:
                    self._covering.add(server)
                    fresh.open()
                    if self._config.role != WARM:  # a standby's gossip tells what it takes
                        self._tell("took-over", detail)
                elif better and server in self._covering:
                    self._covering.discard(server)
                    await fresh.close()
                    if self._config.role != WARM:
                        self._tell("gave-back", detail)
        self._members.watch(frozenset(watched))

    def _better(self, peers: list[StagePeer]) -> list[StagePeer]:
        """Those that serve a stage before this node does. A standby that has taken the stage stays
        behind the primaries in fast mode: both queue groups get every message."""
        me = self._peers.node
        own = min([peer.priority for peer in peers if peer.node == me], default=PRIMARY)
        own = max(own, self._config.priority)
        return [p for p in peers if p.priority < own and not p.draining and p.node != me]

    # --- lanes ------------------------------------------------------------------------------

    async def tend_lanes(self) -> None:
        """Open own lanes where the routing policy uses them; serve the lanes of gone nodes until
        they are empty. Raises `SwarmError`."""
        states = {node: peer.state for node, peer in self._peers.view().items()}
        gone = [node for node, state in states.items() if state in ("dead", "left")]
        # Each lane is adopted once: gossip remembers its node for an hour after the lane is gone.
        self._adopted = {entry for entry in self._adopted if entry[2] in gone}
        for serving in self._servings():
            if self._router.uses_own_lanes(serving.info.model):
                for server in serving.servers:
                    if self._config.priority == PRIMARY:
                        server.source.open_lane(self._peers.node)
                    self._adopt(serving, server, gone)
            for server in serving.servers:
                await server.source.close_idle_lanes(self._peers.node)

    def _adopt(self, serving: Serving, server: StageServer, gone: list[str]) -> None:
        """Open those lanes of gone nodes that fall to this one."""
        peers = [
            peer for peer in self._peers.serving(serving.info, server.stage) if not peer.draining
        ]
        best = min((peer.priority for peer in peers), default=PRIMARY)
        heirs = [peer.node for peer in peers if peer.priority == best]
        for node in gone:
            entry = (serving.info.version, server.stage, node)
            # Every node computes the same survivor: no election, no messages.
            if entry not in self._adopted and rendezvous(node, heirs)[:1] == [self._peers.node]:
                self._adopted.add(entry)
                server.source.open_lane(node)

    async def _adapt_settings(self) -> None:
        """Keep each ack_wait a few times as long as a message takes, the model's own where little
        is asked, and as long as the link of any node needs; keep the depth of the lanes as the
        budgets need it. One primary of a stage does it for all."""
        now, alive = self._clock(), len(self._peers.alive())
        lanes: set[Lane] = set()
        for serving in self._servings():
            usual = lane_options(serving.info, self._config).ack_wait
            for server in serving.servers:
                peers = self._peers.serving(serving.info, server.stage)
                primaries = [peer.node for peer in peers if peer.priority == PRIMARY]
                leads = bool(primaries) and min(primaries) == self._peers.node
                if server.stage == 1:
                    await self._depth.adapt(server, leads, now)
                for lane in server.source.lanes.values():
                    lanes.add(lane)
                    lane.suit(alive)
                    await lane.refresh()
                    link = max([lane.link_wait, *(peer.link_wait for peer in peers)])
                    if leads:
                        await self._tune(server, lane, usual, link, now)
        self._tunings = {lane: tuning for lane, tuning in self._tunings.items() if lane in lanes}

    async def _tune(
        self, server: StageServer, lane: Lane, usual: float, link: float, now: float
    ) -> None:
        # From arrival to ack (or handing over): a busy loop counts, not only the run.
        work, present = measured_work(lane.holding, now), lane.ack_wait
        tuning = self._tunings.get(lane) or Tuning(present, now)
        tuning, wanted = tuning.look(work, present, usual, link, MOST_ACK_WAIT, now)
        if abs(wanted - present) > 1e-3:
            log.info("stage %d: ack_wait is now %.3f s", server.stage, wanted)
            await lane.set_ack_wait(wanted)
        self._tunings[lane] = tuning


class LaneDepth:
    """What one node knows of the budgets in use. usual: seconds, of requests that name none."""

    def __init__(self, mesh: Mesh, usual: float) -> None:
        self._mesh = mesh
        self._usual = usual
        self._budgets: dict[tuple[str, str], Budgets] = {}  # by model and version

    async def adapt(self, server: StageServer, leads: bool, now: float) -> None:
        """Note the budgets that the first stage has seen; where this node leads the stage, and its
        rights allow it, give all lanes of the version the depth for them.
        now: `time.monotonic()`.

        Raises `ApiError`, `Unavailable`, `NotConnected`.
        """
        info = server.info
        key = (info.model, info.version)
        budgets = self._budgets.setdefault(key, Budgets(self._usual, now))
        budgets.seen(server.take_longest_budget(), now)
        mesh = self._mesh
        stream = mesh.subjects.stream(info.model, info.version, 1, mesh.link.domain)
        if not (leads and mesh.link.may_call(api("STREAM.UPDATE", stream))):
            return
        wanted = depth_for(info, budgets.longest)
        if await follow_depth(mesh.link, mesh.subjects, info.model, info.version, wanted):
            log.info("%s: lanes hold %d messages from now on", info.model, wanted.messages)


def watched_by(me: str, peers: Iterable[StagePeer], priority: int, watchers: int) -> set[str]:
    """Of the nodes that serve a stage, those whose crash this node shall see at once: `watchers` of
    the nodes of its priority watch each node of a better one."""
    peers = list(peers)
    mine = [peer.node for peer in peers if peer.priority == priority]
    return {
        peer.node
        for peer in peers
        if peer.priority < priority and me in rendezvous(peer.node, mine)[:watchers]
    }
