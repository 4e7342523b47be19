"""Time to first token of a prompt whose beginning another session had, beside one that is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.meshes import mesh_of

import swarm
from bench.language.generate import SHARDS
from bench.language.language import MODEL, SHAPE, language
from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from bench.rivals.workload import WrongAnswer
from nodes.console import out
from shards.language.load import load_decoder_stage

NEW, SHARED = "new", "begins as another one"
MOST_SHARE = 0.5  # of the time to the first token of a new prompt


SETTLES = 2.0  # seconds in which nodes hear what others hold


@dataclass(frozen=True)
class PrefixPlan:
    """system: tokens of a beginning. own: of the rest of a prompt. prompts: of a slice, each with a
    beginning of its own, and as many again that begin as they do: the slots of a stage keep so
    many. replicas: nodes of each stage."""

    system: int = 384
    own: int = 40
    tokens: int = 8
    prompts: int = 5
    rounds: int = 10
    replicas: int = 1


def _ids(seed: int, count: int) -> list[int]:
    rows = np.random.default_rng(seed).integers(0, SHAPE.vocabulary, count)
    return [int(each) for each in rows]


async def _first(mesh: swarm.Mesh, prompt: Sequence[int], tokens: int) -> tuple[float, list[int]]:
    """Seconds to the first token of a prompt, and all tokens."""
    began, first, made = time.perf_counter(), 0.0, []
    async for token in mesh.generate(MODEL, prompt, max_tokens=tokens):
        first = first or time.perf_counter() - began
        made.append(token.token)
    return first, made


async def measure(plan: PrefixPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate --prefix`. Raises `WrongAnswer`, or the error of a
    start."""
    found: dict[str, list[float]] = {NEW: [], SHARED: []}
    found |= {f"{name}/p90": [] for name in (NEW, SHARED)}
    answered: list[tuple[list[int], list[int]]] = []
    roles = [role for role in SHARDS for _ in range(plan.replicas)]
    async with mesh_of(language(len(SHARDS)), *roles) as local:
        for seed in range(8 * plan.replicas):  # to be warm
            await _first(local.mesh, _ids(1000 + seed, 64), plan.tokens)
        for number in range(plan.rounds):
            progress(f"round {number + 1} of {plan.rounds}")
            seeds = range(number * plan.prompts, (number + 1) * plan.prompts)
            for at, name in enumerate((NEW, SHARED)):
                times = []
                for seed in seeds:
                    prompt = _ids(2000 + seed, plan.system) + _ids(9000 + 2 * seed + at, plan.own)
                    first, made = await _first(local.mesh, prompt, plan.tokens)
                    times.append(first)
                    answered.append((prompt, made))
                found[name].append(1e3 * percentile(times, 0.5))
                found[f"{name}/p90"].append(1e3 * percentile(times, 0.9))
                await asyncio.sleep(SETTLES)
    progress("comparing")
    await asyncio.to_thread(_compare, answered)
    figures = {
        f"{name}/first_p{part}_ms": Figure.of(found[key], "ms")
        for name in (NEW, SHARED)
        for part, key in ((50, name), (90, f"{name}/p90"))
    }
    shares = [mine / new for mine, new in zip(found[SHARED], found[NEW], strict=True)]
    figures["share"] = Figure.of(shares, "x", floor=True)
    return {
        "system": plan.system,
        "own": plan.own,
        "replicas": plan.replicas,
        "compared": len(answered),
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def _compare(answered: Sequence[tuple[list[int], list[int]]]) -> None:
    """Each answer with that of one process. Raises `WrongAnswer`."""
    result = language(1)
    stage = load_decoder_stage(result.manifest, 1, result.files.__getitem__, slots=1)
    try:
        for prompt, made in answered:
            ids, held = list(prompt), 0
            while len(ids) < len(prompt) + len(made):
                logits = stage.run(np.array([ids[held:]], np.int64), 0, np.array([held]))
                held = len(ids)
                ids.append(int(logits[0].argmax()))
            if ids[len(prompt) :] != made:
                raise WrongAnswer(f"{made} from the shards, {ids[len(prompt) :]} from one process")
    finally:
        stage.close()


def show(document: dict[str, Any]) -> None:
    """One table."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    title = f"a prompt of {document['system']} + {document['own']} tokens, "
    title += f"{document['replicas']} a stage"
    table = new_table(title, "", "ms to the first token", "lowest", "highest", "p90")
    for name in (NEW, SHARED):
        figure, p90 = (figures[f"{name}/first_p{part}_ms"] for part in (50, 90))
        cells = (figure.value, figure.low, figure.high, p90.value)
        table.add_row(name, *(f"{each:.4g}" for each in cells))
    out.print(table)
    out.print(f"share: {figures['share']}; {document['compared']} answers compared, all equal")


def misses(document: dict[str, Any]) -> list[str]:
    """The target, if it is missed."""
    share = document["figures"]["share"]["value"]
    if share > MOST_SHARE:
        return [f"a copied beginning leaves {share} of the time, of {MOST_SHARE} at most"]
    return []


PREFIXES = Benchmark("generate-prefix", measure, show, misses=misses)
