"""What a version's nodes need of the server, made by whoever pushes the version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nodes.config import REPLICATED, NodeConfig
from nodes.limits import lane_options
from swarm.errors import InvalidArgument
from swarm.link.grants import EVERYTHING
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.transport.lane import make_lanes

# A lane in memory is gone with its server, and nodes without the right to make one wait for ever.
STORAGE_UNDER_RIGHTS = "file"


def lanes_maker(mesh: Mesh, storage: str = "") -> Callable[[ModelInfo], Awaitable[None]] | None:
    """For `Registry.push`: makes the lanes of a version.

    As many servers keep these lanes as keep keys and artifacts: nodes that find a lane do not move
    it. storage: `memory` or `file`; with "" nodes make them as they need them, which returns None,
    unless the server knows users: its nodes may not. Raises `InvalidArgument`.
    """
    if storage not in ("", "memory", "file"):
        raise InvalidArgument(f"--lanes {storage!r}: it is memory or file")
    if not storage and mesh.link.grants is EVERYTHING:
        return None
    config = NodeConfig("gateway", storage=storage or STORAGE_UNDER_RIGHTS, lanes=REPLICATED)

    async def make(info: ModelInfo) -> None:
        options = lane_options(info, config)
        await make_lanes(mesh.link, mesh.subjects, info.model, info.version, info.last, options)

    return make
