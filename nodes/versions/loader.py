"""Loads model versions, and tells the parts of features of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodes.connection.connection import Connection
from nodes.feature import Part
from nodes.stage.server import StageServer
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.live_weights import NodeWeights
from nodes.versions.loaded import Loaded, learn_known, load
from swarm.model import ModelInfo


class Loader:
    """`load`, then `free`: or `forget`, where the runtimes are closed by somebody else. parts: are
    told of each version."""

    def __init__(self, connection: Connection) -> None:
        config, mesh = connection.config, connection.mesh
        self._mesh = mesh
        self._config = config
        self._tell = connection.events.tell
        self.artifacts = NodeArtifacts(
            mesh.registry, config.cache_folder, config.cache_limit, config.artifact_key, self._tell
        )
        self.weights = NodeWeights(mesh, self.artifacts, config)
        self.parts: list[Part] = []

    async def _load(self, info: ModelInfo, **asked: Any) -> Loaded:
        return await load(self._mesh, self.artifacts, self._config, info, tell=self._tell, **asked)

    async def load(
        self,
        info: ModelInfo,
        *,
        edge: bool,
        lighter: bool = False,
        stages: Sequence[int] | None = None,
        urgent: bool = False,
    ) -> Loaded:
        """Load a version, learn what its stages give for known input, and tell the parts of it. The
        arguments and errors are those of `nodes.versions.loaded.load`."""
        loaded = await self._load(info, edge=edge, lighter=lighter, stages=stages, urgent=urgent)
        try:
            await learn_known(loaded, self._config, urgent)
            self.weights.add(loaded)
            for part in self.parts:
                await part.version_was_loaded(info.model, info.version)
        except BaseException:  # nobody else closes what has just been loaded
            self.free(loaded)
            raise
        return loaded

    async def add(self, loaded: Loaded, stages: Sequence[int]) -> None:
        """Load further stages of a version that serves. The errors are those of `load`."""
        more = await self._load(loaded.info, edge=False, lighter=False, stages=stages)
        try:
            await learn_known(more, self._config)
            await self.weights.add_stages(loaded, more)
            loaded.look = loaded.look or more.look
        except BaseException:  # nobody else closes what has just been loaded
            more.close()
            raise

    async def reload(self, server: StageServer) -> None:
        """Load a new session for a stage whose old one cannot be trusted any more. It computes with
        the weights of the old one."""
        loaded = await self._load(server.info, edge=False, lighter=False, stages=[server.stage])
        await self.weights.renew(server, loaded.stages[server.stage])

    def weights_are_behind(self, model: str, version: str, n: int) -> None:
        """A request asks for weight version `n`, which is not here yet."""
        for part in self.parts:
            part.weights_are_behind(model, version, n)

    def forget(self, loaded: Loaded) -> None:
        """A version serves no more."""
        for part in self.parts:
            part.version_was_freed(loaded.info.model, loaded.info.version)
        self.weights.forget(loaded)

    def free(self, loaded: Loaded) -> None:
        """A version that is loaded is needed no more."""
        self.forget(loaded)
        loaded.close()
