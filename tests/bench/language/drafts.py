"""What drafts gain: the toy in three shards, by turns without drafts, with those of a session's own
text, and with those of a draft model; on one host, and with stage 2 behind a slow link."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.cut_link import start_in
from support.meshes import READY
from support.slow_link import slow_link, unavailable

import swarm
from bench.fleets.links import Shape
from bench.language.generate import SHARDS
from bench.report.figure import Figure
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.language.folder import read_folder
from shards.language.toy import NAME, TOYS, write_toy
from shards.split.split import SplitResult, split
from swarm.errors import Unavailable

PLAIN, LOOKUP, MODEL = "without drafts", "its own text", "draft model"
STATUS_WITHIN = 5.0  # seconds
# Greedily, the toy soon says the same again; a penalty keeps it from that.
QUESTION = "<|user|>os.path.join<|assistant|>"
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "repeats itself": (QUESTION, {}),
    "does not": ("Return the", {"repetition_penalty": 1.3}),
    "drawn": (QUESTION, {"temperature": 0.8, "top_p": 0.95, "seed": 7}),
}


@dataclass(frozen=True)
class DraftPlan:
    """drafts: of a round. model: that guesses, a toy, or "" for none. tokens: of each answer.
    shape: of the link before stage 2, None for one host."""

    drafts: int = 4
    model: str = "toy-draft"
    tokens: int = 200
    rounds: int = 5
    shape: Shape | None = None


@dataclass(slots=True)
class Found:
    """Of one way and text. ms: a token, of each slice. drafts, accepted: of all slices. other:
    texts that differ from the one without drafts."""

    ms: list[float] = field(default_factory=list)
    drafts: int = 0
    accepted: int = 0
    other: int = 0


def toy(name: str, stages: int) -> SplitResult:
    """One of the toys, split."""
    with tempfile.TemporaryDirectory(prefix="toy-") as folder:
        write_toy(Path(folder) / name, TOYS[name])
        model, language = read_folder(Path(folder) / name)
        return split(model.read_bytes(), name=name, stages=stages, profile=False, hints=language)


@asynccontextmanager
async def _mesh(
    url: str, name: str, plan: DraftPlan, flags: tuple[str, ...], namespace: str
) -> AsyncIterator[LocalMesh]:
    far = ("--no-shm",) if namespace else ()
    async with local_mesh(url=url, name=name, shm=not namespace) as local:
        for model, stages in {plan.model: 1, NAME: len(SHARDS)}.items():
            if model:
                result = toy(model, stages)
                await push(local, result.manifest.to_json(), result.files)
        for role in SHARDS:
            if namespace and role == SHARDS[1]:
                start_in(namespace, local, role, NAME, *far, *flags)
            else:
                local.start(role, NAME, *far, *flags)
        await local.ready(READY)
        yield local


async def measure(plan: DraftPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where no link can be made."""
    if plan.shape is not None and (why := await asyncio.to_thread(unavailable)):
        raise Unavailable(f"no link can be made here: {why}")
    progress("starting")
    lookup = ("--drafts", str(plan.drafts))
    ways = {PLAIN: (), LOOKUP: lookup}
    ways |= {MODEL: (*lookup, "--draft-model", plan.model)} if plan.model else {}
    async with contextlib.AsyncExitStack() as stack:
        host, namespace = "127.0.0.1", ""
        if (shape := plan.shape) is not None:
            shaped = slow_link(shape.mbit, shape.round_trip_ms / 1e3, shape.loss / 100)
            link = stack.enter_context(shaped)
            host, namespace = link.address, link.inside[-1]
        server = await stack.enter_async_context(EmbeddedServer(host=host))
        meshes = {
            way: await stack.enter_async_context(
                _mesh(server.url, f"way{number}", plan, flags, namespace)
            )
            for number, (way, flags) in enumerate(ways.items())
        }
        cells = {text: await _cell(plan, meshes, text, progress) for text in TEXTS}
    return {"plan": {"drafts": plan.drafts, "model": plan.model}, "cells": cells}


async def _cell(
    plan: DraftPlan, meshes: Mapping[str, LocalMesh], text: str, progress: Progress
) -> dict[str, Any]:
    found = {way: Found() for way in meshes}
    expected, _ = await _answer(meshes[PLAIN].mesh, text, plan.tokens)
    for local in meshes.values():
        await _answer(local.mesh, text, plan.tokens)  # to be warm
    for number, way in by_turns(plan.rounds, list(meshes)):
        progress(f"{text}, round {number} of {plan.rounds}: {way}")
        before = await _counters(meshes[way])
        ids, seconds = await _answer(meshes[way].mesh, text, plan.tokens)
        after = await _counters(meshes[way])
        found[way].other += ids != expected
        found[way].ms.append(1e3 * seconds / (len(ids) - 1))
        found[way].drafts += after["drafts"] - before["drafts"]
        found[way].accepted += after["accepted"] - before["accepted"]
    plain = found[PLAIN].ms
    return {
        way: {
            "ms": Figure.of(each.ms, "ms").as_doc(),
            "gain": Figure.of(
                [one / mine for one, mine in zip(plain, each.ms, strict=True)], "x", "higher"
            ).as_doc(),
            "drafts_a_token": each.drafts / (plan.rounds * plan.tokens),
            "other_texts": each.other,
            "accepted_share": each.accepted / each.drafts if each.drafts else 0.0,
        }
        for way, each in found.items()
    }


async def _answer(mesh: swarm.Mesh, text: str, tokens: int) -> tuple[list[int], float]:
    """Its tokens, and the seconds from the first one to the last."""
    prompt, options = TEXTS[text]
    ids: list[int] = []
    began = ended = 0.0
    async for token in mesh.generate(NAME, prompt, max_tokens=tokens, **options):
        ended = time.perf_counter()
        began = began or ended
        ids.append(token.token)
    return ids, ended - began


async def _counters(local: LocalMesh) -> dict[str, int]:
    """Of all stages, from statuses that nodes tell now."""
    nodes = local.supervisor.nodes
    seen = [local.status_of(node) for node in nodes]
    local.mesh.link.publish(local.mesh.subjects.status_request)

    def told() -> bool:
        return all(local.status_of(node) is not old for node, old in zip(nodes, seen, strict=True))

    if not await local.until(told, STATUS_WITHIN):
        raise Unavailable("a node does not tell its status")
    stages = [s for node in nodes for s in (local.status_of(node) or {}).get("generation", [])]
    return {
        name: sum(stage["counters"].get(name, 0) for stage in stages)
        for name in ("drafts", "accepted")
    }


def show(document: dict[str, Any]) -> None:
    """One table."""
    plan = document["plan"]
    title = f"a token of one session of the toy, {plan['drafts']} drafts, {plan['model']}"
    headings = ("ms", "gain", "drafts a token", "accepted")
    table = new_table(title, "text", "drafts of", *headings, left=2)
    for text, ways in document["cells"].items():
        for way, cell in ways.items():
            ms, gain = (Figure.from_doc(cell[name]).value for name in ("ms", "gain"))
            share = f"{cell['accepted_share']:.2f}" if way != PLAIN else ""
            drafts = f"{cell['drafts_a_token']:.2f}"
            table.add_row(text, way, f"{ms:.4g}", f"{gain:.2f}", drafts, share)
    out.print(table)
    out.print("Medians of rounds, by turns; gains within a round. All texts were compared.")


def misses(document: dict[str, Any]) -> list[str]:
    """No text may differ."""
    return [
        f"{text}, {way}: {cell['other_texts']} texts differ from the one without drafts"
        for text, ways in document["cells"].items()
        for way, cell in ways.items()
        if cell["other_texts"]
    ]


DRAFTS = Benchmark("generate-drafts", measure, show, misses=misses)
