"""A node's part in making lost lanes anew: lanes in memory, of one server of a cluster.

The decision is `swarm.lanes.is_due`: every node computes alike who does it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from nodes.life.config import MOVED, NodeConfig, lane_options
from nodes.life.serving import Serving
from swarm.errors import SwarmError
from swarm.fleet.advertised import serving
from swarm.fleet.membership import Membership
from swarm.lanes import is_due, is_kept, make_anew, stream_config
from swarm.lanes.moving import TRY_EVERY
from swarm.mesh import Mesh
from swarm.periodic import BEAT, beat
from swarm.subjects import api

log = logging.getLogger("swarm.node")


class LaneMoves:
    """`run()` acts until cancelled. tell(kind, detail) publishes an event."""

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        membership: Membership,
        servings: Callable[[], list[Serving]],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._mesh = mesh
        self._config = config
        self._members = membership
        self._servings = servings
        self._tell = tell
        self._tried = 0.0

    async def run(self) -> None:
        """Look at the lanes, and make the lost ones anew when it is this node's turn."""
        if self._config.lanes != MOVED or self._config.storage != "memory":
            return
        while True:
            await beat(BEAT)
            for each in self._servings():
                now = time.monotonic()
                if self._is_due(each, now) and now - self._tried >= TRY_EVERY:
                    self._tried = now
                    await self._move(each)

    def _is_due(self, each: Serving, now: float) -> bool:
        """Whether this node is to make the version's lanes anew."""
        lanes = [lane for server in each.servers for lane in server.source.lanes.values()]
        lost = [lane.lost_at for lane in lanes if lane.lost_at and lane.copies == 1]
        if not lost:
            return False
        stream, link, info = lanes[0].stream, self._mesh.link, each.info
        if not all(link.may_call(api(f"STREAM.{verb}", stream)) for verb in ("DELETE", "CREATE")):
            return False
        nodes = {
            peer.node
            for stage in range(1, info.last + 1)
            for peer in serving(self._members.alive(), info.model, info.version, stage)
            if not peer.draining
        }
        return is_due(stream, self._members.node, nodes, now - min(lost))

    async def _move(self, each: Serving) -> None:
        info, mesh = each.info, self._mesh
        link = mesh.link
        options = lane_options(info, self._config)
        config = stream_config(mesh.subjects, info.model, info.version, options, link.domain)
        try:
            # Another node may have made them anew since.
            if await is_kept(link, mesh.subjects.whereabouts(info.model, info.version)):
                return
            await make_anew(link, config)
        except SwarmError as error:
            log.info("%s: the lost lanes could not be made anew yet: %s", config["name"], error)
            return
        log.warning("%s: its server is lost; made anew on another one", config["name"])
        self._tell("moved-lanes", {"model": info.model, "version": info.version})
