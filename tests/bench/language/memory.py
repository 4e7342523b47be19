"""Memory of a mesh's nodes before and after many sessions of a language model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import psutil
from support.meshes import mesh_of

from bench.language.generate import SHARDS
from bench.language.language import MODEL, language, prompt
from bench.report.frame import Benchmark, Progress
from bench.report.tables import facts
from nodes.console import out
from nodes.up.mesh import LocalMesh

AT_ONCE, TOKENS = 8, 24
WARM = 100  # sessions before the first look
MOST_RATIO = 1.05


@dataclass(frozen=True)
class MemoryPlan:
    """sessions: between the two looks, with prompts of their own."""

    sessions: int = 1000


async def measure(plan: MemoryPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate --many`. Raises the error of a start."""
    flags = ("--slots", str(AT_ONCE + 4), "--agent-share", "1")
    async with mesh_of(language(len(SHARDS)), *SHARDS, flags=flags) as local:
        progress(f"{WARM} sessions to be warm")
        await _sessions(local, range(WARM))
        before = _bytes(local)
        progress(f"{plan.sessions} sessions")
        await _sessions(local, range(WARM, WARM + plan.sessions))
        after = _bytes(local)
    return {
        "sessions": plan.sessions,
        "before_mb": {role: round(size / 1e6, 1) for role, size in before.items()},
        "after_mb": {role: round(size / 1e6, 1) for role, size in after.items()},
        "ratio": round(max(after[role] / before[role] for role in before), 4),
    }


async def _sessions(local: LocalMesh, numbers: range) -> None:
    """So many at a time."""
    waiting = iter(numbers)

    async def some() -> None:
        for number in waiting:
            await local.mesh.generate(MODEL, prompt(number), max_tokens=TOKENS).whole()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def _bytes(local: LocalMesh) -> dict[str, int]:
    """Resident, by role."""
    return {n.role: psutil.Process(n.pid).memory_info().rss for n in local.supervisor.nodes}


def show(document: dict[str, Any]) -> None:
    """A line for each figure."""
    out.print(facts(document))


def misses(document: dict[str, Any]) -> list[str]:
    """The target, if it is missed."""
    if document["ratio"] > MOST_RATIO:
        return [f"a node has {document['ratio']} times its memory, of {MOST_RATIO} at most"]
    return []


MEMORY = Benchmark("generate-memory", measure, show, misses=misses)
