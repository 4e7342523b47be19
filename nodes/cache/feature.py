"""Answers that are kept: nodes of stage 1 answer what was asked before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nodes.feature import Feature, Part, Surroundings, later

if TYPE_CHECKING:
    from shards.manifest import Manifest
    from swarm.link import Link
    from swarm.model import ModelInfo

CACHE = "cache"  # the part of the manifest


def _around(part: Any, link: Link, info: ModelInfo, runs: Callable[..., Any]) -> Any:
    from nodes.cache.runs import around_runs
    from shards.cache.part import CacheBounds

    return around_runs(CacheBounds.of(part), link, info, runs)


def _describes(manifest: Manifest) -> list[str]:
    part = manifest.parts.get(CACHE)
    if part is None:
        return []
    size, age = part["bytes"] / 1e6, part["age_s"]
    return [f"answers are kept: {size:g} MB at a node of stage 1, for {age:g} s"]


class CacheStatus(Part):
    """Tells of what the stages of a node keep."""

    name = "cache"

    def __init__(self, around: Surroundings) -> None:
        self._versions = around.versions

    async def run(self) -> None:
        await asyncio.Event().wait()

    def status(self) -> dict[str, Any]:
        servers = self._versions.servers()
        kept = [(each.info, answers) for each in servers if (answers := _answers(each.runs))]
        rows = [
            {
                "model": info.model,
                "version": info.version,
                "entries": len(answers),
                "bytes": answers.nbytes,
                "counters": asdict(answers.counters),
            }
            for info, answers in kept
        ]
        return {"cache": rows} if rows else {}


def _answers(runs: Any) -> Any:
    return getattr(runs, "answers", None)


def _parts(around: Surroundings) -> Iterable[Part]:
    return [CacheStatus(around)]


FEATURE = Feature(
    "cache",
    parts=_parts,
    figures="nodes.cache.figures",
    describes=_describes,
    around_runs={CACHE: _around},
    adds=later("nodes.cache.options:parts_of"),
    options={
        "model split": ["nodes.cache.options:CacheOptions"],
        "up": ["nodes.cache.options:CacheOptions"],
    },
)
