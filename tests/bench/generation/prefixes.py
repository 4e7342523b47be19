"""Time to first token of a prompt whose beginning another session had, beside one that is new."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.meshes import mesh_of

import swarm
from bench.generation.generate import SHARDS
from bench.generation.language import MODEL, SHAPE, language
from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.workload import WrongAnswer
from nodes.console import out

NEW, SHARED = "new", "begins as another one"
MOST_SHARE = 0.5  # of the time to the first token of a new prompt


@dataclass(frozen=True)
class PrefixPlan:
    """system: tokens of the beginning. own: of the rest of a prompt. prompts: of a slice."""

    system: int = 384
    own: int = 40
    tokens: int = 8
    prompts: int = 20
    rounds: int = 5


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
    system, seed, compared = _ids(1, plan.system), 1, 0
    async with mesh_of(language(len(SHARDS)), *SHARDS) as local:
        await _first(local.mesh, system, plan.tokens)
        for number, name in by_turns(plan.rounds, list(found)):
            progress(f"round {number} of {plan.rounds}: {name}")
            times = []
            for _ in range(plan.prompts):
                seed += 1
                beginning = system if name == SHARED else _ids(-seed % (1 << 32), plan.system)
                prompt = [*beginning, *_ids(seed, plan.own)]
                first, made = await _first(local.mesh, prompt, plan.tokens)
                times.append(first)
                if name == NEW:  # asked again, it is no new one: the answer may not change
                    _, again = await _first(local.mesh, prompt, plan.tokens)
                    compared += 1
                    if again != made:
                        raise WrongAnswer(f"{again} from copied keys and values, {made} without")
                else:
                    await _first(local.mesh, system, 2)  # so that the system prompt stays in use
            found[name].append(1e3 * percentile(times, 0.5))
    figures = {f"{name}/first_p50_ms": Figure.of(times, "ms") for name, times in found.items()}
    shares = [mine / new for mine, new in zip(found[SHARED], found[NEW], strict=True)]
    figures["share"] = Figure.of(shares, "x", floor=True)
    return {
        "system": plan.system,
        "own": plan.own,
        "compared": compared,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def show(document: dict[str, Any]) -> None:
    """One table."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    title = f"a prompt of {document['system']} + {document['own']} tokens"
    table = new_table(title, "", "ms to the first token", "lowest", "highest")
    for name in (NEW, SHARED):
        figure = figures[f"{name}/first_p50_ms"]
        table.add_row(name, *(f"{each:.4g}" for each in (figure.value, figure.low, figure.high)))
    out.print(table)
    out.print(f"share: {figures['share']}; {document['compared']} answers compared, all equal")


def misses(document: dict[str, Any]) -> list[str]:
    """The target, if it is missed."""
    share = document["figures"]["share"]["value"]
    if share > MOST_SHARE:
        return [f"a copied beginning leaves {share} of the time, of {MOST_SHARE} at most"]
    return []


PREFIXES = Benchmark("generate-prefix", measure, show, misses=misses)
