"""The versions that requests may go to, and how many stages each has, as the registry says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from swarm.errors import PermissionDenied, SwarmError
from swarm.fleet.coverage import Version, served_unlisted, stages_told
from swarm.fleet.view import FleetView
from swarm.link import Link
from swarm.models.registry import Document, Registry
from swarm.routing import BadDesiredState
from swarm.subjects import Subjects

log = logging.getLogger("swarm.fleet")

READ_EVERY = 10.0  # seconds; changes are heard of at once, where this user may hear them
MOST_MODELS = 64  # whose desired state is read


class ServingVersions:
    """Keeps what has to serve: `read` once, or `run()` until cancelled.

    Where the server is away the last answer stays. A user who may not list models knows of those
    that nodes speak of; one who may not read a manifest, of the stages that nodes have told of.

    desired: the desired state of each model that was looked for; None where there is none. on_read:
    called when all was read.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        registry: Registry,
        view: FleetView,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self.desired: dict[str, Document | None] = {}
        self._on_read = on_read
        self._link = link
        self._subjects = subjects
        self._registry = registry
        self._view = view
        self._shares: dict[str, frozenset[str]] = {}  # versions that serve, by model
        self._stages: dict[Version, int] = {}  # of manifests
        self._names: set[str] | None = None  # that the server lists; None where it is not known
        self._told: dict[Version, int] = {}  # the highest that nodes ever told of
        self._look = asyncio.Event()

    @property
    def stages(self) -> dict[Version, int]:
        """The number of stages of each version that requests may go to; at least one."""
        for version, last in stages_told(self._view.nodes.values()).items():
            self._told[version] = max(last, self._told.get(version, 0))
        return {
            (model, version): self._stages.get((model, version))
            or max(1, self._told.get((model, version), 1))
            for model, versions in self._shares.items()
            for version in versions
        }

    @property
    def unlisted(self) -> list[str]:
        """The models that nodes serve while the server lists none; none where it was not asked."""
        nodes = self._view.nodes.values()
        return [] if self._names is None else served_unlisted(self._names, nodes, time.monotonic())

    def look(self) -> None:
        """Read soon: something may have changed."""
        self._look.set()

    async def run(self) -> None:
        """Read when something may have changed, and now and then, until cancelled."""
        pattern = f"{self._subjects.root}.config.serve.*"
        if self._link.grants.may_subscribe(pattern):
            self._link.subscribe(pattern, lambda _: self.look())
        self._link.on_up.append(self.look)
        try:
            while True:
                self._look.clear()
                if self._link.connected:
                    await self.read()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READ_EVERY):
                        await self._look.wait()
        finally:
            self._link.on_up.remove(self.look)

    async def read(self) -> None:
        """Read desired state and manifests; what cannot be read stays as it was."""
        known = {version[0] for version in stages_told(self._view.nodes.values())}
        try:
            names = self._names = set(await self._registry.named())
            self._shares = {name: kept for name, kept in self._shares.items() if name in names}
            names = names | known | self.desired.keys()  # one that is gone is news, too
        except PermissionDenied as error:
            log.debug("only the models that nodes speak of are known: %s", error)
            self._names, names = None, known | self._shares.keys()
        except SwarmError as error:
            log.debug("the models are not known: %s", error)
            return
        for name in sorted(names)[:MOST_MODELS]:
            await self._read_model(name)
        self._on_read()

    async def _read_model(self, name: str) -> None:
        try:
            document = self.desired[name] = await self._registry.desired(name)
        except BadDesiredState as error:
            log.warning("the desired state of %s is not to be read: %s", name, error)
            return
        except SwarmError as error:
            log.debug("the desired state of %s is not known: %s", name, error)
            return
        entries = () if document is None else document["serve"]
        self._shares[name] = frozenset(str(e["version"]) for e in entries if float(e["share"]) > 0)
        for version in self._shares[name]:
            if (name, version) not in self._stages:
                try:
                    self._stages[name, version] = (await self._registry.info(name, version)).last
                except SwarmError as error:
                    log.debug("the manifest of %s@%s is not known: %s", name, version, error)
