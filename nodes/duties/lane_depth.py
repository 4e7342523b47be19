"""The depth of a model version's lanes follows the longest budget of its requests."""

from __future__ import annotations

import logging

from nodes.stage.server import StageServer
from swarm.mesh import Mesh
from swarm.subjects import api
from swarm.transport.lane import Budgets, depth_for, follow_depth

log = logging.getLogger("swarm.node")


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
