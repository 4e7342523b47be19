"""A node that learns: a learner for the model version that the mesh desires, as long as it does.

When another version is desired, learning goes on by this rule: where the frozen layers are the
same, the samples stay; where the head is the same too, the learned parameters do. Otherwise it
begins anew, and has to be taught again: features of other layers mean something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from nodes.connection.connection import Connection
from nodes.connection.events import REASON_LIMIT
from nodes.feature import Part
from nodes.learning.frozen import FrozenModel
from nodes.learning.head import Parameters
from nodes.learning.learner import Learner
from nodes.learning.options import LearnOptions
from nodes.learning.samples import SampleWindow
from nodes.low_priority import in_low_priority_thread
from nodes.versions.versions import Versions
from shards.errors import ShardsError
from shards.manifest import Manifest
from swarm.errors import InvalidArgument, SwarmError
from swarm.learning.consensus.participant import ConsensusEvent
from swarm.learning.exchange import DeltaExchange
from swarm.learning.teaching import listening
from swarm.learning.weights import Weights
from swarm.periodic import BEAT, beat
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList

log = logging.getLogger("swarm.learner")

VERSION_EVERY = 5 * BEAT  # seconds between two questions which version is served
RETRY_AFTER = 5.0  # seconds


class Learning(Part):
    """`run()` learns until cancelled."""

    name = "learning"

    def __init__(
        self,
        connection: Connection,
        learn: LearnOptions,
        identity: Identity,
        versions: Versions,
    ) -> None:
        self._mesh = mesh = connection.mesh
        self._config = connection.config
        self._node = connection.id
        self._membership = connection.membership
        self._tell = connection.events.tell
        self._learn = learn
        self._identity = identity
        self._versions = versions
        self._allowed = AllowList.read(self._config.of(LearnOptions).teachers)
        signed = self._config.trusted is not None
        self._weights = Weights(mesh.link, mesh.subjects, identity, self._allowed, signed=signed)
        self._learner: Learner | None = None
        self._problem = ""

    async def run(self) -> None:
        """Learn the version that this node serves last, until cancelled."""
        version = ""
        while True:
            version = await self._other_than(version)
            learning = asyncio.create_task(self._learn_version(version), name=f"learn {version}")
            try:
                await self._other_than(version)
            finally:
                learning.cancel()
                await asyncio.gather(learning, return_exceptions=True)

    async def _other_than(self, version: str) -> str:
        """The version to learn, when it is another one than this."""
        while (wanted := next(reversed(self._versions.serving), version)) == version:
            await beat(VERSION_EVERY)
        return wanted

    async def _learn_version(self, version: str) -> None:
        with contextlib.ExitStack() as closes:
            await self._keep_learning(version, closes)

    async def _keep_learning(self, version: str, closes: contextlib.ExitStack) -> None:
        """closes: what is loaded; a failure of learning is no reason to load it anew."""
        frozen: FrozenModel | None = None
        while True:
            try:
                if frozen is None:
                    frozen = await self._load(version)
                    closes.callback(frozen.close)
                await self._one(frozen)
            except* (SwarmError, ShardsError, OSError) as group:
                self._problem = "; ".join(str(error) for error in group.exceptions)
                log.error(
                    "%s@%s is not learned: %s", self._config.model_name, version, self._problem
                )
                self._tell("learning", {"what": "failed", "detail": self._problem[:REASON_LIMIT]})
            except* Exception as group:
                # A defect of learning must not end the serving, nor the learning without a word.
                self._problem = f"a defect: {'; '.join(repr(e) for e in group.exceptions)}"
                log.exception("%s@%s is not learned", self._config.model_name, version)
                self._tell("learning", {"what": "failed", "detail": self._problem[:REASON_LIMIT]})
            await asyncio.sleep(RETRY_AFTER)

    async def _one(self, frozen: FrozenModel) -> None:
        learner = self._learner = self._new_learner(frozen, self._learner)
        self._problem = ""
        info = frozen.info
        async with listening(self._config.mesh, info.model, self._node, learner):
            log.info("learning %s@%s", info.model, info.version)
            await learner.run()

    async def _load(self, version: str) -> FrozenModel:
        registry, name = self._mesh.registry, self._config.model_name
        info = await registry.info(name, version)
        manifest = Manifest.from_json(await registry.manifest(name, version))
        if manifest.sealed:
            raise InvalidArgument(
                f"{name}@{version} is encrypted, and is not learned: its weight versions would lie "
                "in the mesh's store as they are"
            )
        if info.asks:
            raise InvalidArgument(
                f"{name}@{version} has no layers of its own: start learners for what it asks, "
                f"{', '.join(info.asks)}"
            )
        fetch = self._versions.loader.artifacts.fetcher(manifest)
        return await in_low_priority_thread(lambda: FrozenModel.load(manifest, info, fetch))

    def _new_learner(self, frozen: FrozenModel, old: Learner | None) -> Learner:
        samples: SampleWindow | None = None
        start: Parameters | None = None
        before: Learner | None = None
        if old is not None and old.frozen.features_id == frozen.features_id:
            samples = old.samples
            if old.frozen.model_id == frozen.model_id:
                start = old.parameters
                before = old if old.frozen.info.version == frozen.info.version else None
        elif old is not None and old.samples.seen():
            detail = "the layers before the head have changed: samples have to be taught again"
            self._tell("learning", {"what": "begun-anew", "detail": detail})
        return Learner(
            self._node,
            frozen,
            self._weights,
            lambda parameters, epoch: self._join(frozen, parameters, epoch),
            self._learn,
            samples=samples,
            start=start,
            before=before,
            in_background=in_low_priority_thread,
            is_idle=self._is_idle,
            tell=self._tell,
        )

    def _join(self, frozen: FrozenModel, parameters: Parameters, epoch: int) -> DeltaExchange:
        info = frozen.info
        exchange = DeltaExchange(
            self._mesh.link,
            self._mesh.subjects,
            self._membership,
            self._identity,
            info.model,
            info.version,
            bytes.fromhex(frozen.model_id),
            parameters,
            epoch=epoch,
            options=self._learn.exchange,
            allowed=self._allowed,
        )

        def tell(event: ConsensusEvent) -> None:
            detail = {"what": event.kind, "sender": event.node, "detail": event.detail}
            self._tell("learning", detail)

        exchange.on_event(tell)
        return exchange

    def _is_idle(self) -> bool:
        return not any(server.queued or server.waiting for server in self._versions.servers())

    def status(self) -> dict[str, Any]:
        """The field that a learner adds to its node's status documents."""
        doc = self._learner.status() if self._learner is not None else {}
        if self._problem:
            doc["problem"] = self._problem[:REASON_LIMIT]
        return {"learning": doc}
