"""What a mesh's token costs: a small random decoder in three shards, beside one process with the
whole of it, by turns."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.meshes import mesh_of

import swarm
from bench.generation.language import MODEL, Floor, language, prompt, sampling
from bench.report.figure import Better, Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.workload import WrongAnswer
from nodes.console import out
from shards.manifest import write_dir

MESH, WHOLE = "shards", "one process"
SHARDS = ("shard-1", "shard-2", "shard-3")
KEYS: dict[str, Better] = {
    "token_p50_ms": "lower",
    "token_p99_ms": "lower",
    "first_p50_ms": "lower",
    "per_s": "higher",
}
MOST_HOPS_MS = 1.0  # that three hops add to a token of one session, of the medians
LEAST_SHARE = 0.5  # of the floor's tokens a second, with 16 sessions


@dataclass(frozen=True)
class GeneratePlan:
    """sessions: at a time. tokens: of each answer."""

    sessions: tuple[int, ...] = (1, 4, 16)
    tokens: int = 200
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One slice: ids by session; seconds to the first tokens, between tokens, and of it all."""

    ids: list[list[int]]
    first: list[float]
    between: list[float]
    took: float

    def figures(self) -> dict[str, float]:
        return {
            "token_p50_ms": 1e3 * percentile(self.between, 0.5),
            "token_p99_ms": 1e3 * percentile(self.between, 0.99),
            "first_p50_ms": 1e3 * percentile(self.first, 0.5),
            "per_s": sum(map(len, self.ids)) / self.took,
        }


async def of_mesh(mesh: swarm.Mesh, sessions: int, tokens: int) -> Run:
    """So many sessions at once."""
    first: list[float] = []
    between: list[float] = []

    async def one(number: int) -> list[int]:
        made: list[int] = []
        drawn, last = sampling(number), time.perf_counter()
        async for token in mesh.generate(
            MODEL,
            prompt(number),
            max_tokens=tokens,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            seed=drawn.seed,
        ):
            now = time.perf_counter()
            (between if made else first).append(now - last)
            made.append(token.token)
            last = now
        return made

    began = time.perf_counter()
    ids = await asyncio.gather(*(one(number) for number in range(sessions)))
    return Run(list(ids), first, between, time.perf_counter() - began)


async def of_floor(floor: Floor, sessions: int, tokens: int) -> Run:
    """The same, from one process, in which each turn is one run for all sessions."""
    found = await floor.answer(sessions, tokens)
    took = found["first"][-1] + sum(found["turns"])
    return Run(found["ids"], found["first"], found["turns"], took)


async def measure(plan: GeneratePlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate`. Raises `WrongAnswer`, or the error of a start."""
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="language-") as folder:
        whole = language(1)
        write_dir(Path(folder) / "whole", whole.manifest, whole.files)
        floor = Floor(Path(folder) / "whole")
        # A slot is free a moment after its client has read the last token.
        slots = str(max(plan.sessions) + 4)
        try:
            progress("starting")
            await floor.start()
            async with mesh_of(
                language(len(SHARDS)), *SHARDS, flags=("--slots", slots, "--agent-share", "1")
            ) as local:
                ways: dict[str, Callable[[int], Awaitable[Run]]] = {
                    MESH: lambda sessions: of_mesh(local.mesh, sessions, plan.tokens),
                    WHOLE: lambda sessions: of_floor(floor, sessions, plan.tokens),
                }
                for sessions in plan.sessions:
                    figures |= await _measured(ways, sessions, plan.rounds, progress)
        finally:
            await floor.stop()
    return {"figures": {name: figure.as_doc() for name, figure in figures.items()}}


async def _measured(
    ways: dict[str, Callable[[int], Awaitable[Run]]],
    sessions: int,
    rounds: int,
    progress: Progress,
) -> dict[str, Figure]:
    """Figures by `SESSIONS/WAY/…`; ratios and differences are taken within each round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    expected = (await ways[WHOLE](sessions)).ids
    await ways[MESH](sessions)  # to be warm
    for number, name in by_turns(rounds, list(ways)):
        progress(f"{sessions} sessions, round {number} of {rounds}: {name}")
        run = await ways[name](sessions)
        if run.ids != expected:
            raise WrongAnswer(f"{sessions} sessions: the texts of {name} are others")
        found[name].append(run.figures())
    figures = {
        f"{sessions}/{name}/{key}": Figure.of(
            [each[key] for each in runs], key.rpartition("_")[2], better
        )
        for name, runs in found.items()
        for key, better in KEYS.items()
    }
    pairs = list(zip(found[MESH], found[WHOLE], strict=True))
    added = [mesh["token_p50_ms"] - whole["token_p50_ms"] for mesh, whole in pairs]
    shares = [mesh["per_s"] / whole["per_s"] for mesh, whole in pairs]
    figures[f"{sessions}/added_ms"] = Figure.of(added, "ms")
    figures[f"{sessions}/share"] = Figure.of(shares, "x", "higher", floor=True)
    return figures


def show(document: dict[str, Any]) -> None:
    """One table."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    headings = ("ms a token", "p99", "first", "tokens/s", "added", "share")
    table = new_table("sessions of a language model at once", "", "way", *headings, left=2)
    for sessions in dict.fromkeys(name.partition("/")[0] for name in figures):
        for way in (MESH, WHOLE):
            own = {key: figures[f"{sessions}/{way}/{key}"] for key in KEYS}
            cells = [f"{own[key].value:.4g}" for key in KEYS]
            beside = [figures[f"{sessions}/{key}"] for key in ("added_ms", "share")]
            told = [f"{each.value:.3g}" if way == MESH else "" for each in beside]
            table.add_row(sessions, way, *cells, *told)
    out.print(table)
    out.print("Medians of rounds; differences and shares within a round. All texts were compared.")


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that are missed."""
    figures, found = document["figures"], []
    added = figures.get("1/added_ms", {"value": 0.0})["value"]
    if added > MOST_HOPS_MS:
        found.append(f"three hops add {added} ms to a token, of {MOST_HOPS_MS} at most")
    share = figures.get("16/share", {"value": 1.0})["value"]
    if share < LEAST_SHARE:
        found.append(f"16 sessions get {share} of the floor's tokens, of {LEAST_SHARE} at least")
    return found


GENERATE = Benchmark("generate", measure, show, misses=misses)
