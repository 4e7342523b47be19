"""The model versions that a gateway has loaded because somebody asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nodes.versions.loaded import Loaded
from swarm.errors import Unavailable
from swarm.requests.request import MAX_BUDGET

log = logging.getLogger("swarm.node")

# Seconds for which nobody asks for a version, until it is unloaded. No request that was given it
# goes on for so long.
UNASKED_FOR = MAX_BUDGET + 60.0
LOADS_WITHIN = 1800.0  # seconds; a large model comes over a slow link


@dataclass
class _Asked:
    loading: asyncio.Task[Loaded]
    loaded: Loaded | None = None
    waiting: int = 0  # lookups under way
    at: float = 0.0  # when the last lookup, or the loading, ended


class AskedModels:
    """`lookup` loads what is not here, `tend` unloads what nobody asks for any more.

    A version is loaded once, in a task that no request owns: whoever waits for longer than its
    budget goes, and the loading goes on for those who come later.

    load(model, version): raises where it cannot. free(loaded): it is needed no more. clock():
    seconds.
    """

    def __init__(
        self,
        load: Callable[[str, str], Awaitable[Loaded]],
        free: Callable[[Loaded], None],
        clock: Callable[[], float],
    ) -> None:
        self._load = load
        self._free = free
        self._clock = clock
        self._asked: dict[tuple[str, str], _Asked] = {}

    async def lookup(self, model: str, version: str) -> Loaded:
        """A model version, loaded. Raises what `load` raises, `Unavailable` where it took too
        long, or all was closed. May be cancelled."""
        key = model, version
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = self._begun(key)
        if asked.loaded is not None:
            asked.at = self._clock()
            return asked.loaded
        asked.waiting += 1
        try:
            await asyncio.wait({asked.loading})  # which a request that goes does not cancel
        finally:
            asked.waiting -= 1
            asked.at = self._clock()
        if asked.loading.cancelled():
            raise Unavailable("this node ends")
        return asked.loading.result()

    def _begun(self, key: tuple[str, str]) -> _Asked:
        async def load() -> Loaded:
            try:
                async with asyncio.timeout(LOADS_WITHIN):
                    return await self._load(*key)
            except TimeoutError:
                raise Unavailable("{}@{} takes too long to load".format(*key)) from None

        asked = _Asked(asyncio.create_task(load(), name="load {}@{}".format(*key)))

        def ended(loading: asyncio.Task[Loaded]) -> None:
            is_there = self._asked.get(key) is asked
            if loading.cancelled() or (error := loading.exception()) is not None:
                if is_there:  # the next request tries again
                    del self._asked[key]
                if not loading.cancelled():
                    log.warning("%s@%s is not loaded: %s", *key, error)
            elif is_there:
                asked.loaded, asked.at = loading.result(), self._clock()
            else:  # closed while it was loaded
                self._free(loading.result())

        asked.loading.add_done_callback(ended)
        return asked

    def tend(self) -> None:
        """Call it now and then: unload the versions that nobody has asked for in `UNASKED_FOR`."""
        now = self._clock()
        for (model, version), asked in list(self._asked.items()):
            if asked.loaded is not None and not asked.waiting and now - asked.at > UNASKED_FOR:
                log.info("%s@%s is unloaded: nobody asks for it any more", model, version)
                self._unload(model, version)

    def close(self) -> None:
        """Unload all, and end what loads."""
        for model, version in list(self._asked):
            self._unload(model, version)

    def _unload(self, model: str, version: str) -> None:
        asked = self._asked.pop((model, version))
        asked.loading.cancel()
        if asked.loaded is not None:
            self._free(asked.loaded)
