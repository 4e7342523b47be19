"""What a mesh's token costs: a small random decoder in three shards, by turns with one process that
has the whole of it, with the same stages behind nats-py alone, and with onnxruntime-genai."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.meshes import mesh_of

import swarm
from bench.language import genai
from bench.language.language import MODEL, MOST_SESSIONS, Engine, language, prompt, sampling
from bench.language.raw_nats import RawNats
from bench.language.run import KEYS, Run
from bench.report.figure import Figure
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.workload import WrongAnswer
from nodes.console import out
from shards.manifest import write_dir

MESH, WHOLE, RAW, GENAI = "shards", "one process", "raw NATS", "onnxruntime-genai"
Way = Callable[[int], Awaitable[Run]]
"""So many sessions at once."""
SHARDS = ("shard-1", "shard-2", "shard-3")
MOST_HOPS_MS = 1.0  # that three hops add to a token of one session, of the medians
LEAST_SHARE = 0.5  # of the floor's tokens a second, with 16 sessions


@dataclass(frozen=True)
class GeneratePlan:
    """sessions: at a time. tokens: of each answer."""

    sessions: tuple[int, ...] = (1, 4, 16)
    tokens: int = 200
    rounds: int = 5


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


@asynccontextmanager
async def contenders(tokens: int) -> AsyncIterator[tuple[dict[str, Way], dict[str, str]]]:
    """The ways, by name, ready, and why the others do not take part."""
    whole, shards = language(1), language(len(SHARDS))
    why = genai.unavailable()
    with tempfile.TemporaryDirectory(prefix="language-") as name:
        folder = Path(name)
        write_dir(folder / "whole", whole.manifest, whole.files)
        write_dir(folder / "shards", shards.manifest, shards.files)
        floor, raw = Engine(folder / "whole"), RawNats(folder / "shards", folder, len(SHARDS))
        engines: dict[str, Engine | RawNats] = {WHOLE: floor, RAW: raw}
        if not why:
            genai.write(folder / "genai")
            engines[GENAI] = Engine(folder / "genai", genai.__name__)
        # A slot is free a moment after its client has read the last token.
        flags = ("--slots", str(MOST_SESSIONS + 4), "--agent-share", "1")
        try:
            for engine in engines.values():
                await engine.start()
            async with mesh_of(shards, *SHARDS, flags=flags) as local:
                ways: dict[str, Way] = {MESH: partial(of_mesh, local.mesh, tokens=tokens)}
                ways |= {way: partial(each.answer, tokens=tokens) for way, each in engines.items()}
                yield ways, {GENAI: why} if why else {}
        finally:
            for engine in engines.values():
                await engine.stop()


async def measure(plan: GeneratePlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate`. Raises `WrongAnswer`, or the error of a start."""
    figures: dict[str, Figure] = {}
    other = 0
    progress("starting")
    async with contenders(plan.tokens) as (ways, skipped):
        for sessions in plan.sessions:
            found, differ = await _slices(ways, sessions, plan.rounds, progress)
            figures |= _figures(found, sessions)
            other += differ
    return {
        "skipped": skipped,
        "genai_other_texts": other,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


async def _slices(
    ways: dict[str, Way], sessions: int, rounds: int, progress: Progress
) -> tuple[dict[str, list[dict[str, float]]], int]:
    """The figures of each way's slices, in order, and how many texts of onnxruntime-genai are
    others than the floor's: its graph is not cut, and so optimized otherwise."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    expected = (await ways[WHOLE](sessions)).ids
    for name in ways:
        await ways[name](sessions)  # to be warm
    other = 0
    for number, name in by_turns(rounds, list(ways)):
        progress(f"{sessions} sessions, round {number} of {rounds}: {name}")
        run = await ways[name](sessions)
        if name == GENAI:
            likeliest = [at for at in range(sessions) if sampling(at).temperature == 0.0]
            other += sum(run.ids[at] != expected[at] for at in likeliest)
        elif run.ids != expected:
            raise WrongAnswer(f"{sessions} sessions: the texts of {name} are others")
        found[name].append(run.figures())
    return found, other


def _figures(found: dict[str, list[dict[str, float]]], sessions: int) -> dict[str, Figure]:
    """By `SESSIONS/WAY/…`; ratios and differences to one process are taken within each round."""
    figures = {
        f"{sessions}/{name}/{key}": Figure.of(
            [each[key] for each in slices], key.rpartition("_")[2], better
        )
        for name, slices in found.items()
        for key, better in KEYS.items()
    }
    for name in found:
        pairs = list(zip(found[name], found[WHOLE], strict=True))
        added = [mine["token_p50_ms"] - floor["token_p50_ms"] for mine, floor in pairs]
        shares = [mine["per_s"] / floor["per_s"] for mine, floor in pairs]
        figures[f"{sessions}/{name}/added_ms"] = Figure.of(added, "ms")
        figures[f"{sessions}/{name}/share"] = Figure.of(shares, "x", "higher", floor=True)
    return figures


def show(document: dict[str, Any]) -> None:
    """One table."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    headings = ("ms a token", "p99", "first", "tokens/s", "added", "share")
    table = new_table("sessions of a language model at once", "", "way", *headings, left=2)
    for row in dict.fromkeys(name.rpartition("/")[0] for name in figures):
        sessions, _, way = row.partition("/")
        cells = [f"{figures[f'{row}/{key}'].value:.4g}" for key in KEYS]
        beside = [f"{figures[f'{row}/{key}'].value:.3g}" for key in ("added_ms", "share")]
        table.add_row(sessions, way, *cells, *(beside if way != WHOLE else ["", ""]))
    out.print(table)
    out.print("Medians of rounds; differences and shares within a round. All texts were compared.")
    if document["genai_other_texts"]:
        out.print(f"{GENAI}: {document['genai_other_texts']} texts are others")
    for way, why in document["skipped"].items():
        out.print(f"{way} takes no part: {why}")


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that are missed."""
    figures, found = document["figures"], []
    added = figures.get(f"1/{MESH}/added_ms", {"value": 0.0})["value"]
    if added > MOST_HOPS_MS:
        found.append(f"three hops add {added} ms to a token, of {MOST_HOPS_MS} at most")
    share = figures.get(f"16/{MESH}/share", {"value": 1.0})["value"]
    if share < LEAST_SHARE:
        found.append(f"16 sessions get {share} of the floor's tokens, of {LEAST_SHARE} at least")
    return found


GENERATE = Benchmark("generate", measure, show, misses=misses)
