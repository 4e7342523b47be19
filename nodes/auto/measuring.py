"""How long each stage of a version takes on this node, measured once, kept by the host's nodes.

Stages are loaded one after the other in a thread of low priority, run on synthetic input, and
freed. The shortest of a few runs counts: a neighbour that computes meanwhile makes the others
longer. A figure is kept in the cache's folder, by the stage's hash, the device, the threads and the
runtime's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from nodes.config import NodeConfig
from nodes.low_priority import in_low_priority_thread
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.loaded import loads_otherwise
from shards.errors import ShardsError
from shards.manifest import Manifest
from shards.runtimes.load import load_stage
from shards.runtimes.memory import need_of
from shards.runtimes.synthetic import random_feeds
from shards.schema import Shard
from swarm.errors import SwarmError

log = logging.getLogger("swarm.planning")

MEASURE_WITHIN = 20.0  # seconds for all stages of a version; the others are estimated
RUNS, RUNS_WITHIN = 5, 0.25  # runs of one stage, at most; seconds
LONGEST_US = 60_000_000  # a longer time in the folder is not believed


class Measuring:
    """The times of one node's stages."""

    def __init__(self, artifacts: NodeArtifacts, config: NodeConfig) -> None:
        self._artifacts = artifacts
        self._config = config
        self._folder = Path(config.cache_folder) / "pace" if config.cache_folder else None

    async def pace(
        self, manifest: Manifest, within: float = MEASURE_WITHIN, room: float = inf
    ) -> list[int]:
        """Microseconds of each stage from stage 1 on; of a stage that there was no time for, or
        that does not fit, as the splitter measured it, corrected by the stages that were measured.
        room: bytes; a stage that needs more is loaded to be measured nowhere.
        """
        shards = [shard for shard in manifest.shards if shard.stage > 0]
        found: dict[int, int] = {}
        until = time.monotonic() + within
        for shard in shards:
            kept = await asyncio.to_thread(self._kept, shard)
            if kept is None and time.monotonic() < until and need_of(shard.bytes) <= room:
                kept = await self._measured(manifest, shard)
            if kept is not None:
                found[shard.stage] = kept
        usual = {shard.stage: max(1, round(shard.compute_ms * 1e3)) for shard in shards}
        factor = sum(found.values()) / sum(usual[s] for s in found) if found else 1.0
        return [found.get(stage, max(1, round(us * factor))) for stage, us in usual.items()]

    async def _measured(self, manifest: Manifest, shard: Shard) -> int | None:
        if not shard.file:
            return 1  # all tensors are passed on
        if loads_otherwise(manifest):
            return None
        try:
            folders = await self._artifacts.folders(manifest)
            vault = await self._artifacts.vault(manifest)
            fetch = self._artifacts.fetcher(manifest)
            load = partial(
                load_stage,
                manifest,
                shard.stage,
                fetch,
                threads=self._config.threads,
                folders=folders,
                placement=self._config.placement,
                vault=vault,
            )
            microseconds = await in_low_priority_thread(partial(_time, load, shard))
        except (SwarmError, ShardsError, OSError) as error:
            log.info("stage %d is not measured: %s", shard.stage, error)
            return None
        await asyncio.to_thread(self._keep, shard, microseconds)
        return microseconds

    def _file(self, shard: Shard) -> Path | None:
        import onnxruntime

        if self._folder is None:
            return None
        config = self._config
        about = [shard.sha256, config.device, config.device_options, str(config.threads)]
        about.append(str(onnxruntime.__version__))
        return self._folder / hashlib.sha256("\n".join(about).encode()).hexdigest()

    def _kept(self, shard: Shard) -> int | None:
        file = self._file(shard)
        if file is None:
            return None
        try:
            value = int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):  # nobody has measured it, or somebody has spoilt it
            return None
        return value if 0 < value <= LONGEST_US else None

    def _keep(self, shard: Shard, microseconds: int) -> None:
        file = self._file(shard)
        if file is None:
            return
        temporary = file.with_suffix(f".{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(str(microseconds), encoding="ascii")
            os.replace(temporary, file)
        except OSError as error:
            log.info("the time of stage %d is not kept: %s", shard.stage, error)
            with contextlib.suppress(OSError):
                temporary.unlink()


def _time(load: Callable[[], object], shard: Shard) -> int:
    """Microseconds of the shortest of a few runs. Raises `ShardsError`."""
    stage = load()
    try:
        feeds = random_feeds(shard.receives, seed=1)
        shortest, until = float("inf"), time.perf_counter() + RUNS_WITHIN
        for _ in range(RUNS):
            started = time.perf_counter()
            stage.run(feeds)  # type: ignore[attr-defined]
            ended = time.perf_counter()
            shortest = min(shortest, ended - started)
            if ended > until:
                break
        return min(LONGEST_US, max(1, round(shortest * 1e6)))
    finally:
        stage.close()  # type: ignore[attr-defined]
