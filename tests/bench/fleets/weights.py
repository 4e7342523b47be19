"""Rounds by turns, with updates and without, under the same load; then the answers are judged."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from support.meshes import LOOPBACK, mesh_of

import swarm
from bench.fleets.weight_updates import CASES, Answer, Case, Tensors, count_torn
from bench.helpers import Helper, helper
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from nodes.console import out
from shards.split.split import SplitResult, split
from swarm.errors import Status, Unavailable

BUDGET = 5.0  # seconds for a request
READY_TIMEOUT = 60.0  # seconds
LEARNING_NODE = "bench.fleets.learning_node"
LOAD = 0.5  # of the capacity
CAPACITY_SECONDS = 3.0
IN_FLIGHT = 4  # requests at a time while the capacity is measured
INPUTS = 4  # different requests


@dataclass(frozen=True)
class WeightsPlan:
    """cases: names of `CASES`. updates: of each case, one each `every` seconds, in `rounds`."""

    cases: tuple[str, ...] = tuple(CASES)
    updates: int = 100
    every: float = 0.5
    rounds: int = 5


@dataclass
class Load:
    """Asks at a pace, whatever became of the requests before. Latencies in seconds, by phase."""

    mesh: swarm.Mesh
    model: str
    inputs: Tensors
    lost: int = 0
    reasons: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)

    async def run(self, rate: float, seconds: float, phase: str) -> None:
        """`seconds` of requests, until each has ended."""
        async with asyncio.TaskGroup() as group:
            async for number, _ in paced(rate, round(rate * seconds)):
                group.create_task(self._ask(number % INPUTS, phase))

    async def _ask(self, index: int, phase: str) -> None:
        row = {name: array[index : index + 1] for name, array in self.inputs.items()}
        result = await self.mesh.ask(self.model, row, BUDGET)
        if result.status is not Status.OK:
            self.lost += 1
            self.reasons.append(f"{result.status}: {result.message}")
            return
        self.latencies.setdefault(phase, []).append(result.latency)
        [values] = result.outputs.values()
        self.answers.append(Answer(index, result.hops[-1].weights, values.tobytes()))

    async def capacity(self) -> float:
        """Requests a second with `IN_FLIGHT` at a time."""
        ended = 0
        until = time.monotonic() + CAPACITY_SECONDS

        async def ask() -> None:
            nonlocal ended
            while time.monotonic() < until:
                await self._ask(ended % INPUTS, "capacity")
                ended += 1

        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
        return ended / CAPACITY_SECONDS


async def measure_weights(plan: WeightsPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench weights`. Raises `Unavailable`."""
    cases = {}
    for name in plan.cases:
        case = CASES[name]
        progress(f"{name}: splitting …")
        model = await asyncio.to_thread(case.build)
        result = await asyncio.to_thread(
            split, model, name=name, stages=case.stages, bandwidth=LOOPBACK
        )
        cases[name] = await _measure_case(case, model, result, plan, progress)
    return {"updates": plan.updates, "every_s": plan.every, "cases": cases}


async def _measure_case(
    case: Case,
    model: bytes,
    result: SplitResult,
    plan: WeightsPlan,
    progress: Progress,
) -> dict[str, Any]:
    manifest = result.manifest
    learned = result.files[manifest.shard(case.stages).file]
    random = np.random.default_rng(0)
    inputs = {
        spec.name: random.random((INPUTS, *spec.shape[1:]), np.float32) for spec in manifest.inputs
    }
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weights-")))
        file = folder / "learned.onnx"
        file.write_bytes(learned)
        local = await stack.enter_async_context(mesh_of(result))
        nodes = []
        for stage in range(1, case.stages + 1):
            arguments = {
                "role": f"shard-{stage}",
                "model": case.name,
                "url": local.url,
                "mesh": local.name,
                "case": case.name,
                "file": str(file),
            }
            nodes.append(await stack.enter_async_context(helper(LEARNING_NODE, arguments)))
        await asyncio.gather(*(node.answer(within=READY_TIMEOUT) for node in nodes))
        progress(f"{case.name}: measuring the capacity …")
        load = Load(local.mesh, case.name, inputs)
        await load.capacity()
        capacity = await load.capacity()
        before = (await nodes[-1].answer({}))["mb"]
        takes, memory = await _rounds(plan, load, capacity * LOAD, nodes, progress)
    progress(f"{case.name}: comparing {len(load.answers)} answers with the whole model's …")
    torn = await asyncio.to_thread(
        count_torn, model, inputs, partial(case.changes, learned), load.answers
    )
    quiet, updating = load.latencies["quiet"], load.latencies["updating"]
    ratio = percentile(updating, 0.99) / percentile(quiet, 0.99)
    return {
        "capacity_per_s": round(capacity, 1),
        "requests": len(load.answers) + load.lost,
        "weight_versions_seen": len({answer.weights for answer in load.answers}),
        "lost": load.lost,
        "reasons": load.reasons[:5],
        "torn": torn,
        "quiet_p50_ms": round(percentile(quiet, 0.5) * 1e3, 3),
        "quiet_p99_ms": round(percentile(quiet, 0.99) * 1e3, 3),
        "updating_p50_ms": round(percentile(updating, 0.5) * 1e3, 3),
        "updating_p99_ms": round(percentile(updating, 0.99) * 1e3, 3),
        "p99_ratio": round(ratio, 3),
        "take_p50_ms": round(statistics.median(takes[1:] or takes), 3),
        "take_p99_ms": round(percentile(takes[1:] or takes, 0.99), 3),
        "first_take_ms": round(takes[0], 3),
        "memory_before_mb": round(before, 1),
        "memory_mb": {str(n): round(mb, 1) for n, mb in memory.items()},
    }


async def _rounds(
    plan: WeightsPlan,
    load: Load,
    rate: float,
    nodes: list[Helper],
    progress: Progress,
) -> tuple[list[float], dict[int, float]]:
    """How long the learning stage's takes lasted, in milliseconds; its memory in MB after the first
    update and after each round, by the number of updates."""
    takes: list[float] = []
    memory: dict[int, float] = {}
    done = 0

    async def update(until: int) -> None:
        nonlocal done
        while done < until:
            began = time.monotonic()
            done += 1
            orders = await asyncio.gather(*(node.answer({"take": done}) for node in nodes))
            if not all(order["taken"] for order in orders):
                raise Unavailable(f"a node did not take weight version {done}")
            takes.append(orders[-1]["ms"])
            await asyncio.sleep(max(0.0, began + plan.every - time.monotonic()))

    # The first update of a stage prepares the ones that follow: it is no part of the rounds.
    await update(1)
    memory[1] = (await nodes[-1].answer({}))["mb"]
    for number in range(1, plan.rounds + 1):
        until = max(2, round(plan.updates * number / plan.rounds))
        seconds = (until - done) * plan.every
        progress(f"round {number} of {plan.rounds}, {done} updates, p99 …")
        await load.run(rate, seconds, "quiet")
        await asyncio.gather(load.run(rate, seconds, "updating"), update(until))
        memory[done] = (await nodes[-1].answer({}))["mb"]
    return takes, memory


MOST_RATIO = 1.3  # p99 with updates, in p99 without
MOST_HEAD_TAKE_MS = 2.0  # median
MOST_GROWTH = 1.05  # memory after all updates, in that after the first


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that a document misses, as sentences."""
    found = []
    for name, case in document["cases"].items():
        if case["lost"] or case["torn"]:
            found.append(f"{name}: {case['lost']} requests lost, {case['torn']} answers torn")
        if case["p99_ratio"] > MOST_RATIO:
            found.append(f"{name}: p99 is {case['p99_ratio']} times the quiet one ({MOST_RATIO})")
        if name == "digits" and case["take_p50_ms"] > MOST_HEAD_TAKE_MS:
            found.append(f"{name}: a head takes {case['take_p50_ms']} ms ({MOST_HEAD_TAKE_MS})")
        memory = list(case["memory_mb"].values())
        if memory[-1] > memory[0] * MOST_GROWTH:
            found.append(f"{name}: memory grew from {memory[0]} to {memory[-1]} MB")
    return found


def show(document: dict[str, Any]) -> None:
    """The figures, for people."""
    shown = Table("figure", *document["cases"], title=f"{document['updates']} weight versions")
    keys = next(iter(document["cases"].values()))
    for key in keys:
        cells = [str(case[key]) for case in document["cases"].values()]
        shown.add_row(key.replace("_", " "), *cells)
    out.print(shown)


WEIGHTS = Benchmark("weights", measure_weights, show, misses=misses)
