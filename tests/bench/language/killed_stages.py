"""Stages of a language model that are killed in mid-sentence: texts equal to the undisturbed, and
the pause of each session."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from support.meshes import READY, all_ready, mesh_of

from bench.language.generate import SHARDS
from bench.language.language import MODEL, answers, language, prompt, sampling
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import facts
from nodes.console import out
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.language.load import load_decoder_stage

FALLBACK = "fallback"
REPLAY, FOLLOWED = "replayed", "followed"


@dataclass(frozen=True)
class KillPlan:
    """kills: of each stage. sessions: under way at each kill. tokens: of each answer. seed: of the
    moments. drafts: of each step, 0 for none; the model guesses them itself, and so nearly all are
    right. follow: by turns with a mesh whose fallback follows
    the sessions."""

    kills: int = 50
    sessions: int = 8
    tokens: int = 300
    seed: int = 1
    drafts: int = 0
    follow: bool = False


@dataclass(slots=True)
class Found:
    """Of all trials. pauses: seconds, by stage, the longest wait for a token of each session that
    was under way. usual: seconds, the longest wait of each session without a fault."""

    texts: int = 0
    wrong: int = 0
    hit: int = 0
    pauses: dict[str, list[float]] = field(default_factory=dict)
    usual: list[float] = field(default_factory=list)


def undisturbed(plan: KillPlan) -> list[list[int]]:
    """What one process with the whole model answers."""
    whole = language(1)
    stage = load_decoder_stage(whole.manifest, 1, whole.files.__getitem__, slots=plan.sessions)
    try:
        ids: list[list[int]] = answers(stage, range(plan.sessions), plan.tokens)["ids"]
    finally:
        stage.close()
    return ids


async def measure(plan: KillPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate --kills`. Raises the error of a start."""
    expected = await asyncio.to_thread(undisturbed, plan)
    slots = str(plan.sessions + 2)
    guesses = ("--drafts", str(plan.drafts), "--draft-model", MODEL) if plan.drafts else ()
    flags = ("--slots", slots, "--agent-share", "1", *guesses)
    ways = {REPLAY: flags} | ({FOLLOWED: (*flags, "--follow")} if plan.follow else {})
    found, length, chance = {name: Found() for name in ways}, {}, random.Random(plan.seed)
    async with contextlib.AsyncExitStack() as stack:
        meshes = {
            name: await stack.enter_async_context(
                mesh_of(language(len(SHARDS)), *SHARDS, FALLBACK, flags=given)
            )
            for name, given in ways.items()
        }
        for name, local in meshes.items():
            length[name] = await _trial(local, plan, None, 0.0, expected, found[name])
        for number, name in by_turns(plan.kills, list(ways)):
            for role in SHARDS:
                wrong = sum(each.wrong for each in found.values())
                progress(f"kill {number} of {plan.kills}, {role}, {name}; {wrong} wrong")
                local = meshes[name]
                node = next(node for node in local.supervisor.nodes if node.role == role)
                await _takes_sessions(local, node)
                after = length[name] * chance.random()
                await _trial(local, plan, node, after, expected, found[name])
                await all_ready(local)
        accepted = sum(map(_accepted, meshes.values()))
    return {
        "kills": plan.kills * len(SHARDS) * len(ways),
        "texts": sum(each.texts for each in found.values()),
        "wrong": sum(each.wrong for each in found.values()),
        "accepted_drafts": accepted,
        **{name: _figures(each) for name, each in found.items()},
    }


def _figures(found: Found) -> dict[str, Any]:
    pauses = [pause for each in found.pauses.values() for pause in each]
    by_stage = {
        role: {
            "pause_p50_ms": round(1e3 * percentile(each, 0.5), 1),
            "pause_max_ms": round(1e3 * max(each, default=0.0), 1),
        }
        for role, each in found.pauses.items()
    }
    return {
        "under_way": found.hit,
        "longest_wait_undisturbed_ms": round(1e3 * max(found.usual), 1),
        "pause_p50_ms": round(1e3 * percentile(pauses, 0.5), 1),
        "pause_p99_ms": round(1e3 * percentile(pauses, 0.99), 1),
        "pause_max_ms": round(1e3 * max(pauses, default=0.0), 1),
        **by_stage,
    }


async def _trial(
    local: LocalMesh,
    plan: KillPlan,
    node: NodeProcess | None,
    after: float,
    expected: list[list[int]],
    found: Found,
) -> float:
    """All sessions once, with one kill after so many seconds; the seconds that they took."""
    killed_at = float("inf")
    ended: dict[int, float] = {}
    longest: dict[int, float] = {}

    async def one(number: int) -> list[int]:
        made: list[int] = []
        drawn, last = sampling(number), time.perf_counter()
        async for token in local.mesh.generate(
            MODEL,
            prompt(number),
            max_tokens=plan.tokens,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            seed=drawn.seed,
        ):
            now = time.perf_counter()
            if now > killed_at or (made and node is None):
                longest[number] = max(longest.get(number, 0.0), now - last)
            made.append(token.token)
            last = now
        ended[number] = last
        return made

    began = time.perf_counter()
    asking = [asyncio.create_task(one(number)) for number in range(plan.sessions)]
    if node is not None:
        await asyncio.sleep(after)
        killed_at = time.perf_counter()
        node.signal(signal.SIGKILL)
    texts = await asyncio.gather(*asking)
    if node is None:
        found.usual += longest.values()
    else:
        found.texts += len(texts)
        found.wrong += sum(text != right for text, right in zip(texts, expected, strict=True))
        hit = [number for number, end in ended.items() if end > killed_at]
        found.hit += len(hit)
        found.pauses.setdefault(node.role, []).extend(longest.get(each, 0.0) for each in hit)
    return max(ended.values()) - began


async def _takes_sessions(local: LocalMesh, node: NodeProcess) -> None:
    """Until the node gets sessions of its stage, after a start too."""
    before = _opened(local, node)

    async def opened() -> bool:
        await local.mesh.generate(MODEL, prompt(0), max_tokens=2).whole()
        local.mesh.link.publish(local.mesh.subjects.status_request)
        await asyncio.sleep(0.05)
        return _opened(local, node) > before

    async with asyncio.timeout(READY):
        while not await opened():
            before = min(before, _opened(local, node))  # a new process counts from 0


def _accepted(local: LocalMesh) -> int:
    """Drafts that were right, as far as statuses told before their nodes died."""
    stages = [stage for doc in local.statuses.values() for stage in doc.get("generation", [])]
    return sum(stage["counters"].get("accepted", 0) for stage in stages)


def _opened(local: LocalMesh, node: NodeProcess) -> int:
    stages = (local.status_of(node) or {}).get("generation", [])
    return sum(stage["counters"].get("opened", 0) for stage in stages)


def show(document: dict[str, Any]) -> None:
    """A line for each figure."""
    out.print(facts(document))


def misses(document: dict[str, Any]) -> list[str]:
    """No text may differ."""
    wrong = document["wrong"]
    return [f"{wrong} of {document['texts']} texts differ from the undisturbed"] if wrong else []


KILLED = Benchmark("generate-kills", measure, show, misses=misses)
