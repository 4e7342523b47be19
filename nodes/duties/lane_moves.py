"""A node's part in making lost lanes anew: lanes in memory, of one server of a cluster.

The decision is `swarm.transport.lane.is_due`: every node computes alike who does it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nodes.config import MOVED
from nodes.connection.connection import Connection
from nodes.limits import lane_options
from nodes.versions.serving import Serving
from swarm.errors import SwarmError
from swarm.periodic import BEAT, beat
from swarm.subjects import ANY, api
from swarm.transport.lane import is_due, is_kept, least_bytes, make_anew, stream_config
from swarm.transport.lane.moving import TRY_EVERY
from swarm.transport.source import StageSource

log = logging.getLogger("swarm.node")


class LaneMoves:
    """`run()` acts until cancelled."""

    def __init__(self, connection: Connection, servings: Callable[[], list[Serving]]) -> None:
        self._mesh = connection.mesh
        self._config = connection.config
        self._peers = connection.peers
        self._tell = connection.events.tell
        self._servings = servings
        self._tried: dict[str, float] = {}  # when, by stream

    async def run(self) -> None:
        """Look at the lanes, and make the lost ones anew when it is this node's turn."""
        if self._config.lanes != MOVED or self._config.storage != "memory":
            return
        while True:
            await beat(BEAT)
            for source in [server.source for each in self._servings() for server in each.servers]:
                now = time.monotonic()
                if self._is_due(source, now):
                    self._tried[source.lanes[ANY].stream] = now
                    await self._move(source)

    def _is_due(self, source: StageSource, now: float) -> bool:
        """Whether this node is to make the stage's lanes anew."""
        lanes = source.lanes.values()
        lost = [lane.lost_at for lane in lanes if lane.lost_at and lane.copies == 1]
        stream, link, info = source.lanes[ANY].stream, self._mesh.link, source.info
        if not lost or now - self._tried.get(stream, 0.0) < TRY_EVERY:
            return False
        if not all(link.may_call(api(f"STREAM.{verb}", stream)) for verb in ("DELETE", "CREATE")):
            return False
        nodes = {  # they alone see that the stage's lanes are lost
            peer.node for peer in self._peers.serving(info, source.stage) if not peer.draining
        }
        return is_due(stream, self._peers.node, nodes, now - min(lost))

    async def _move(self, source: StageSource) -> None:
        link, subjects = self._mesh.link, self._mesh.subjects
        info = source.info
        lanes = info.model, info.version, source.stage
        options = lane_options(info, self._config)
        config = stream_config(subjects, *lanes, options, link.domain)
        stream = source.lanes[ANY].stream
        if stream != config["name"]:  # an older swarm's, which has the lanes of all stages
            config |= {"name": stream, "subjects": [subjects.features_of(info.model, info.version)]}
        try:
            # Another node may have made them anew since.
            if await is_kept(link, subjects.whereabouts(*lanes)):
                return
            await make_anew(link, config, least_bytes(options, source.stage))
        except SwarmError as error:
            log.info("%s: the lost lanes could not be made anew yet: %s", config["name"], error)
            return
        log.warning("%s: its server is lost; made anew on another one", config["name"])
        detail = {"model": info.model, "version": info.version, "stage": source.stage}
        self._tell("moved-lanes", detail)
