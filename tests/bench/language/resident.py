"""The memory of three nodes with a language model of a true size, beside what they have to hold."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from support.meshes import mesh_of
from zoo.language.decoder_graph import DecoderShape, decoder

import swarm
from bench.language.generate import SHARDS
from bench.language.language import MODEL
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import push
from shards.language.load import decoder_of
from shards.manifest import Manifest, read_dir, write_dir
from shards.split.split import split

QWEN2 = DecoderShape(
    layers=24,
    width=896,
    heads=14,
    kv_heads=2,
    head_dim=64,
    feedforward=4864,
    vocabulary=151936,
    context=2048,
    bias=True,
    tied=True,
    theta=1e6,
)
"""The shape of Qwen2-0.5B, with the context that is measured."""

MOST_SHARE = 1.1  # resident bytes of the nodes, of those of weights, keys and values
LOOK_EVERY = 0.25  # seconds
READY = 240.0  # seconds for the nodes to load
MB = 1e6


@dataclass(frozen=True)
class ResidentPlan:
    """bits: of a weight, 4 or 32. sessions: at a time, of `tokens` each, `answered` of them
    decoded."""

    bits: Literal[4, 32] = 32
    sessions: int = 4
    tokens: int = 2048
    answered: int = 32
    shape: DecoderShape = QWEN2


@dataclass(slots=True)
class Resident:
    """Bytes of a process. pss: where a page that n processes share counts 1/n. private: pages that
    no other one has."""

    pss: int = 0
    private: int = 0


@dataclass
class Looks:
    """What was seen of the nodes, by role. idle: before the first request. peak: at the look at
    which all together had most. held: while all sessions held all their tokens."""

    idle: dict[str, Resident] = field(default_factory=dict)
    peak: dict[str, Resident] = field(default_factory=dict)
    held: dict[str, Resident] = field(default_factory=dict)


def resident_of(text: str) -> Resident:
    """The sums in the text of `/proc/PID/smaps_rollup`."""
    kilobytes = {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return Resident(kilobytes["Pss"] * 1024, private * 1024)


def total(looks: dict[str, Resident]) -> int:
    return sum(each.pss for each in looks.values())


async def measure(plan: ResidentPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate --memory`. Raises the error of a start."""
    with tempfile.TemporaryDirectory(prefix="resident-") as name:
        folder = Path(name)
        progress("writing and splitting the model …")
        await asyncio.to_thread(_write, plan, folder)
        manifest, fetch = read_dir(name)
        files = {shard.file: fetch(shard.file) for shard in manifest.shards}
        async with mesh_of() as local:
            progress("pushing …")
            await push(local, manifest.to_json(), files)
            flags = ["--slots", str(plan.sessions), "--session-tokens", str(plan.tokens)]
            flags += ["--agent-share", "1"]
            nodes = [local.start(role, MODEL, *flags) for role in SHARDS]
            await local.ready(READY)

            def look() -> dict[str, Resident]:
                return {
                    node.role: resident_of(Path(f"/proc/{node.pid}/smaps_rollup").read_text())
                    for node in nodes
                }

            looks = Looks(idle=look())
            progress("prompts …")
            took = await _ask(local.mesh, plan, looks, look)
    return _document(plan, manifest, looks, took)


def _write(plan: ResidentPlan, folder: Path) -> None:
    model = decoder(replace(plan.shape, bits=plan.bits))
    result = split(model, name=MODEL, stages=len(SHARDS), profile=False)
    write_dir(folder, result.manifest, result.files)


async def _ask(mesh: swarm.Mesh, plan: ResidentPlan, looks: Looks, look: Any) -> float:
    """All sessions at once, looked at all the time; the seconds that they took."""
    began, filled = time.perf_counter(), 0

    async def one(number: int) -> None:
        nonlocal filled
        rows = np.random.default_rng(number).integers(
            0, plan.shape.vocabulary, plan.tokens - plan.answered
        )
        made = 0
        async for _ in mesh.generate(
            MODEL, [int(each) for each in rows], max_tokens=plan.answered, budget=600.0
        ):
            made += 1
            filled += made == 1
            if filled == plan.sessions and not looks.held:
                looks.held = look()

    async def watch() -> None:
        while True:
            seen = look()
            if total(seen) > total(looks.peak):
                looks.peak = seen
            await asyncio.sleep(LOOK_EVERY)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(one(number) for number in range(plan.sessions)))
    finally:
        watching.cancel()
    return time.perf_counter() - began


def _document(plan: ResidentPlan, manifest: Manifest, looks: Looks, took: float) -> dict[str, Any]:
    held = plan.sessions * plan.tokens
    stages = {
        role: {
            "weights": shard.bytes,
            "kv": held * decoder_of(manifest).stage_bytes_per_token(shard.stage),
        }
        for role, shard in zip(SHARDS, manifest.shards, strict=True)
    }
    need = sum(sum(stage.values()) for stage in stages.values())
    return {
        "plan": asdict(plan),
        "stages": stages,
        "looks": asdict(looks),
        "seconds": took,
        "need": need,
        "share": total(looks.peak) / need,
    }


def show(document: dict[str, Any]) -> None:
    """One table."""
    plan, looks = document["plan"], document["looks"]
    title = f"{plan['sessions']} sessions of {plan['tokens']} tokens, {plan['bits']} bits a weight"
    headings = ("weights", "KV", "idle", "peak", "private then")
    table = new_table(f"{title}; MB", "node", *headings)
    for role, need in document["stages"].items():
        peak, idle = looks["peak"][role], looks["idle"][role]
        sizes = (*need.values(), idle["pss"], peak["pss"], peak["private"])
        table.add_row(role, *(f"{size / MB:.0f}" for size in sizes))
    out.print(table)
    out.print(
        f"all at the peak (PSS): {document['share']:.3f} of weights, keys and values, "
        f"{document['need'] / MB:.0f} MB; {document['seconds']:.0f} s of prompts and answers"
    )


def misses(document: dict[str, Any]) -> list[str]:
    """The target, if it is missed."""
    if document["share"] > MOST_SHARE:
        return [
            f"the nodes hold {document['share']:.3f} of weights, keys and values, "
            f"of {MOST_SHARE} at most"
        ]
    return []


RESIDENT = Benchmark("generate-memory", measure, show, misses=misses)
