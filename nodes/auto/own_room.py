"""The memories that a node's stages take from: the host's, and that of its accelerator.

What is free is measured; what the stages of this node and of its neighbours take of the same memory
comes on top, so that each of them counts the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from nodes.auto.settings import AutoOptions
from nodes.config import NodeConfig
from nodes.life.gpus import ON_NVIDIA, Gpus
from shards.errors import ShardsError
from shards.runtimes.device import parse_options
from shards.runtimes.load import devices_of
from shards.runtimes.memory import free_bytes
from swarm.auto.advertised import LONGEST_POOL, MOST_ROOM

STEP = 1 << 20  # bytes; room is gossiped in these steps …
MOVED = 0.1  # … and again when it has changed by this share


class OwnRoom:
    """`look(held)` tells the bytes of each memory, by a name that all who share it know. node,
    host: ids."""

    def __init__(self, config: NodeConfig, free: Callable[[], int | None] = free_bytes) -> None:
        options = config.of(AutoOptions)
        self._config = config
        self._limit, self._pool = options.memory, options.memory_pool
        self._free = free
        self._gpus = Gpus(lambda: {self._device})
        self._told: dict[str, int] = {}

    @cached_property
    def _device(self) -> str:
        """On which the stages compute, if it goes well."""
        try:
            return devices_of(self._config.placement)[0]
        except ShardsError:  # the loading of a stage says so
            return ""

    def is_shared(self) -> bool:
        """Whether other nodes take from the same memories."""
        return bool(self._pool) or not self._limit or self._device in ON_NVIDIA

    def look(self, node: str, host: str, held: Mapping[str, int], least: float) -> dict[str, int]:
        """held: bytes that the stages of all nodes take of a memory, by its name. least: no memory
        has more than this at present."""
        found: dict[str, float] = {}
        name = f"{host}/{self._pool}" if self._pool else node if self._limit else host or node
        free = None if self._limit else self._free()
        found[name] = self._limit or (MOST_ROOM / 2 if free is None else free + held.get(name, 0))
        if (gpu := self._gpu()) is not None:
            on = f"{host or node}:gpu{gpu['gpu']}"
            found[on] = gpu["total"] - gpu["used"] + held.get(on, 0)
        for name, size in found.items():
            steps = int(min(size, least, MOST_ROOM / 2)) // STEP * STEP
            told = self._told.get(name)
            if told is None or abs(steps - told) > MOVED * told:
                self._told[name[:LONGEST_POOL]] = steps
        return dict(self._told)

    def _gpu(self) -> dict[str, Any] | None:
        if self._device not in ON_NVIDIA:
            return None
        number = parse_options(self._config.device_options).get("device_id", "0")
        return next((each for each in self._gpus.look() if str(each["gpu"]) == number), None)
