"""What a weight version changes, by whichever feature keeps it."""

from __future__ import annotations

from nodes.feature import Tensors
from nodes.features import features
from swarm.errors import NotFound
from swarm.mesh import Mesh
from swarm.model import ModelInfo


async def learned_tensors(mesh: Mesh, info: ModelInfo, n: int) -> Tensors:
    """See `Feature.tensors_of`."""
    for feature in features():
        if feature.tensors_of is not None:
            return await feature.tensors_of(mesh, info, n)
    raise NotFound(f"nothing here knows weight version {n} of {info.model}@{info.version}")
