"""The models of the mesh as a gateway's clients see them: which there are, and which can answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from swarm.errors import NotFound, SubjectError, SwarmError, Unavailable
from swarm.fleet.placement import Served
from swarm.mesh import Mesh
from swarm.model import ModelInfo

LISTED_FOR = 1.0  # seconds: a client that asks all the time reads the registry once a second
LIST_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Listed:
    """A version of a model in the registry. ready: whether nodes serve all its stages. reason: why
    it is not ready, "" where it is."""

    name: str
    version: str
    ready: bool
    reason: str = ""


class Models:
    """The models that a gateway can ask for. Methods raise `Unavailable` without a server."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._listing: asyncio.Task[list[tuple[str, str]]] | None = None
        self._listed_at = 0.0

    def is_connected(self) -> bool:
        """Whether the mesh can be asked at present."""
        return self._mesh.link.connected

    async def describe(self, model: str, version: str = "") -> ModelInfo:
        """A version's inputs and outputs; without a version, of the one that serves. Raises
        `NotFound`, `InvalidArgument` for what is no name."""
        try:
            return await self._mesh.model(f"{model}@{version}" if version else model)
        except NotFound as error:  # clients of Triton look for these words
            raise NotFound(f"Request for unknown model: {error}") from None

    async def versions(self, model: str) -> list[str]:
        """Those in the registry, sorted. Raises `NotFound` for an unknown model."""
        found = [version for name, version in await self._names() if name == model]
        if not found:
            found = [(await self.describe(model)).version]  # pushed within the last second
        return found

    async def is_ready(self, model: str, version: str = "") -> bool:
        """Whether nodes serve all its stages; False for an unknown model."""
        try:
            return self._serves(await self.describe(model, version))
        except (NotFound, SubjectError):
            return False

    async def listed(self) -> list[Listed]:
        """All versions of all models in the registry, sorted."""
        return [await self._with_state(name, version) for name, version in await self._names()]

    async def _with_state(self, name: str, version: str) -> Listed:
        try:
            if self._serves(await self.describe(name, version)):
                return Listed(name, version, True)
        except SwarmError as error:
            return Listed(name, version, False, str(error))
        return Listed(name, version, False, "no node serves one of its stages")

    async def manifest(self, model: str, version: str = "") -> bytes:
        """A version's manifest, JSON: its task, among others. Raises `NotFound`."""
        info = await self.describe(model, version)
        return await self._mesh.registry.manifest(info.model, info.version)

    def _serves(self, info: ModelInfo) -> bool:
        return self._mesh.placement.served(info) > Served.NOWHERE

    async def _names(self) -> list[tuple[str, str]]:
        """All that is in the registry, read once for all who ask at the same time."""
        now = time.monotonic()
        if self._listing is None or now - self._listed_at > LISTED_FOR:
            self._listed_at = now
            self._listing = asyncio.create_task(self._read(), name="list of models")
        listing = self._listing
        await asyncio.wait({listing})  # which a client that goes does not cancel
        if listing.exception() is not None:
            self._listing = None
        return listing.result()

    async def _read(self) -> list[tuple[str, str]]:
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                return await self._mesh.registry.models()
        except TimeoutError:
            raise Unavailable(f"the list of models did not come in {LIST_TIMEOUT:g} s") from None
