"""The model versions that a gateway has loaded because somebody asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nodes.life.serving import Loaded
from swarm.mesh import MAX_BUDGET

log = logging.getLogger("swarm.node")

# Seconds for which nobody asks for a version, until it is unloaded. No request that was given it
# goes on for so long.
UNASKED_FOR = MAX_BUDGET + 60.0


@dataclass
class _Asked:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: Loaded | None = None
    waiting: int = 0  # lookups under way
    at: float = 0.0  # when the last lookup ended


class AskedModels:
    """`lookup` loads what is not here, `tend` unloads what nobody asks for any more.

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
        """A model version, loaded. Raises what `load` raises."""
        key = model, version
        asked = self._asked.setdefault(key, _Asked())
        asked.waiting += 1
        try:
            async with asked.lock:  # the first requests come together, and one of them loads it
                if asked.loaded is None:
                    asked.loaded = await self._load(model, version)
                    if self._asked.get(key) is not asked:  # closed while it was loaded
                        self._free(asked.loaded)
            return asked.loaded
        finally:
            asked.waiting -= 1
            asked.at = self._clock()
            unused = asked.loaded is None and not asked.waiting
            if unused and self._asked.get(key) is asked:
                del self._asked[key]

    def tend(self) -> None:
        """Call it now and then: unload the versions that nobody has asked for in `UNASKED_FOR`."""
        now = self._clock()
        for (model, version), asked in list(self._asked.items()):
            if asked.loaded is not None and not asked.waiting and now - asked.at > UNASKED_FOR:
                log.info("%s@%s is unloaded: nobody asks for it any more", model, version)
                self._unload(model, version)

    def close(self) -> None:
        """Unload all."""
        for model, version in list(self._asked):
            self._unload(model, version)

    def _unload(self, model: str, version: str) -> None:
        loaded = self._asked.pop((model, version)).loaded
        if loaded is not None:
            self._free(loaded)
