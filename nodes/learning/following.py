"""Keeps this node's runtimes at the mesh's present weight versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from nodes.connection.events import REASON_LIMIT, Tell
from nodes.feature import Part
from shards.errors import ShardsError
from swarm.errors import DecodeError, InvalidArgument, SwarmError, Unauthenticated
from swarm.learning.weights import Weights

log = logging.getLogger("swarm.node")

RETRY_AFTER = 1.0  # seconds, after a server that did not answer
READ_EVERY = 30.0  # seconds: an announcement may be lost
FIRST_READ = 3.0  # seconds that the first reading may hold up a node that is about to serve

Which = tuple[str, str]  # model, version
Take = Callable[[str, str, int, Mapping[str, np.ndarray], str], Awaitable[bool]]


class WeightFollower(Part):
    """Watches the ledgers of the model versions that this node computes.

    take(model, version, n, tensors, base): brings the runtimes to that weight version, or raises
    and leaves them as they are. tell(kind, detail): publishes an event, which the status document
    counts. A weight version that cannot be taken, whatever was raised, is refused once, with the
    event `rejected`, and read again when the ledger changes and every `READ_EVERY`.
    """

    name = "weights"

    def __init__(self, weights: Weights, take: Take, tell: Tell) -> None:
        self._weights = weights
        self._take = take
        self._tell = tell
        self._followed: dict[Which, Callable[[], None]] = {}  # what ends the watch
        self._due: set[Which] = set()
        self._wake = asyncio.Event()
        self._refused: dict[Which, str] = {}  # why, as published last

    async def version_was_loaded(self, model: str, version: str) -> None:
        """Watch a model version that was just loaded, and take its present weights before it
        serves, if they can be had in good time."""
        which = model, version

        def changed() -> None:
            self._mark(which)

        self.version_was_freed(model, version)  # a watch that is there already would never end
        self._followed[which] = self._weights.watch(model, version, changed)
        try:
            async with asyncio.timeout(FIRST_READ):
                await self._read(which)
        except (SwarmError, ShardsError, TimeoutError) as error:
            log.warning("%s@%s begins with its base: %s", model, version, error)
            self._mark(which)

    def version_was_freed(self, model: str, version: str) -> None:
        """The model version is served here no more."""
        end = self._followed.pop((model, version), None)
        if end is not None:
            end()

    def weights_are_behind(self, model: str, version: str, n: int) -> None:
        """A request asks for weight version `n`, which is not here: read the ledger again."""
        if (model, version) in self._followed:
            self._mark((model, version))

    def _mark(self, which: Which) -> None:
        self._due.add(which)
        self._wake.set()

    async def run(self) -> None:
        """Take what is announced, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_EVERY):
                    await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due or set(self._followed), set()
            for which in due & self._followed.keys():
                try:
                    await self._read(which)
                except (SwarmError, ShardsError) as error:
                    log.info("weights of %s@%s: %s", *which, error)
                    self._due.add(which)
            if self._due:
                await asyncio.sleep(RETRY_AFTER)
                self._wake.set()

    async def _read(self, which: Which) -> None:
        """Raises what may pass by itself: the server is away, a tensor was just deleted."""
        try:
            stored = await self._weights.read(*which)
            if stored.refusal is not None:
                self._refuse(which, str(stored.refusal))
            record = stored.document.present if stored.document is not None else None
            if record is None:
                return
            tensors = await self._weights.tensors(*which, record)
            await self._take(*which, record.n, tensors, record.base)
            if stored.refusal is None:
                self._refused.pop(which, None)
        except (DecodeError, InvalidArgument, Unauthenticated, ShardsError) as error:
            self._refuse(which, str(error))
        except SwarmError:
            raise
        except Exception as error:
            # Others wrote what was read: no defect that it meets may end the serving.
            log.exception("weights of %s@%s met a defect", *which)
            self._refuse(which, f"a defect: {error!r}")

    def _refuse(self, which: Which, reason: str) -> None:
        if self._refused.get(which) == reason:
            return
        self._refused[which] = reason
        log.warning("weights of %s@%s are refused: %s", *which, reason)
        detail = {"model": which[0], "version": which[1], "detail": reason[:REASON_LIMIT]}
        self._tell("rejected", detail)
