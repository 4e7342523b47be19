"""The nodes of a lighter model answer for the models that name it.

When all nodes of such a model are gone, a client of plain NATS still finds somebody at
`infer.<model>`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nodes.versions.loaded import Loaded
from swarm.errors import SwarmError
from swarm.link import LinkMessage
from swarm.mesh import Mesh

log = logging.getLogger("swarm.node")

LOOK_AGAIN = 5.0  # seconds after a look that failed
MOST_MODELS = 64  # for which a node answers beside its own


class StandsIn:
    """`run()` keeps up with what the registry says, until cancelled. model: that this node serves.
    also(subject): serve one more subject."""

    def __init__(self, mesh: Mesh, model: str, also: Callable[[str], None]) -> None:
        self._mesh = mesh
        self._model = model
        self._also = also
        self._changed = asyncio.Event()
        self.models: set[str] = set()

    async def run(self) -> None:
        """Look at the start, when a model was pushed that names this one, and when the connection
        is back."""
        link, subjects = self._mesh.link, self._mesh.subjects
        news = f"{subjects.root}.config.lighter.{self._model}.*"
        sid = link.subscribe(news, self._heard) if link.grants.may_subscribe(news) else None
        link.on_up.append(self._changed.set)
        try:
            while True:
                self._changed.clear()
                again = None if await self._look() else LOOK_AGAIN
                try:
                    async with asyncio.timeout(again):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            link.on_up.remove(self._changed.set)
            if sid is not None:
                link.unsubscribe(sid)

    async def lookup(self, model: str, version: str) -> Loaded:
        """A version of a model of `models`: nothing of it is loaded here. Raises `NotFound`."""
        return Loaded(await self._mesh.catalog.info(model, version), {}, None, None, 0.0)

    def _heard(self, message: LinkMessage) -> None:
        self._changed.set()

    async def _look(self) -> bool:
        """Whether the registry could be asked."""
        mesh = self._mesh
        try:
            found = await mesh.registry.lighter_of(self._model)
        except (SwarmError, TimeoutError) as error:
            log.debug("which models name %s is unknown: %s", self._model, error)
            return False
        for model in found:
            subject = mesh.subjects.infer(model)
            if model in self.models or len(self.models) >= MOST_MODELS:
                continue
            # Rights tell nothing of queue groups: who answers for a model may send its notices.
            if not mesh.link.grants.may_publish(mesh.subjects.notices(model)):
                continue
            self.models.add(model)
            self._also(subject)
            log.info("%s names %s as its lighter model: answering for it", model, self._model)
        return True
