"""`swarm bench chaos`: play, print, judge."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.meshes import digits, mesh_of, split_digits, whole

import swarm
from bench.asked import GRACE, Asked, Tensors, Workload, ask, is_lost, kind
from bench.faults.chaos_schedule import Fault, rule, schedule
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark
from bench.report.tables import facts
from nodes.console import out
from nodes.up.mesh import LocalMesh
from shards.manifest import write_dir
from shards.split.split import split
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo
from swarm.wire.tensors import DTYPES

DIGITS = "digits"
STAGES = 3
DRAWN_INPUTS = 8  # for a model of whose inputs only names and shapes are known


def make_workload(model: str, seed: int) -> Workload:
    """Split `digits`, or an ONNX file, in three, and ask the whole model.

    seed: of the inputs of a file, uniform between 0 and 1, with free dimensions at 1.
    Raises `InvalidArgument` for a missing file and for a model whose inputs are no FP32 tensors.
    """
    if model == DIGITS:
        images, logits = digits()
        rows = range(len(images))
        inputs: list[Tensors] = [{"image": images[i : i + 1]} for i in rows]
        return Workload(split_digits(), inputs, [{"logits": logits[i : i + 1]} for i in rows])
    data = _read(model)
    result = split(data, name="chaos", stages=STAGES)
    drawn = _drawn(ModelInfo.from_manifest(result.manifest.to_json()), seed)
    return Workload(result, list(drawn), list(whole(data, drawn)))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"--model {path}: {error}; it is digits or an ONNX file") from None


def _drawn(info: ModelInfo, seed: int) -> list[dict[str, np.ndarray]]:
    others = [spec.name for spec in info.inputs if spec.datatype != "FP32"]
    if others:
        raise InvalidArgument(f"input {others[0]!r} is not FP32: inputs are drawn for FP32 only")
    rng = np.random.default_rng(seed)
    return [
        {
            spec.name: rng.random([max(1, d) for d in spec.shape], dtype=DTYPES["FP32"].type)
            for spec in info.inputs
        }
        for _ in range(DRAWN_INPUTS)
    ]


async def ask_steadily(
    mesh: swarm.Mesh, workload: Workload, rate: float, seconds: float, budget: float
) -> list[Asked]:
    """`rate` requests a second for `seconds`, each with `budget` seconds; returns them when all
    have ended, or should have."""
    records: list[Asked] = []
    tasks: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    async for index, _ in paced(rate, int(rate * seconds)):
        records.append(Asked(time.monotonic() - began))
        task = asyncio.create_task(ask(mesh, workload, index, budget, began, records[-1]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        _, unanswered = await asyncio.wait(tasks, timeout=budget + GRACE)
        for task in unanswered:
            task.cancel()
    return records


OK = "OK"
MOST_ERRORS = 8  # kinds of messages that are shown


def request_figures(requests: Sequence[Asked], seconds: float, budget: float) -> dict[str, Any]:
    """Counts, the answered share (0..1), latencies of the answered requests and the longest time
    without an answer, in milliseconds.

    lost: requests without any outcome within their budget and `GRACE`. seconds: length of the load.
    """
    answered = [r for r in requests if r.status == OK and not r.wrong]
    latencies = [(r.done - r.sent) * 1e3 for r in answered]
    # Up to the end of the load: a silence that lasts until then counts too.
    moments = [0.0, *sorted(r.done for r in answered if r.done < seconds), seconds]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    statuses = Counter(r.status for r in requests if r.status)
    errors = Counter(f"{r.status}: {kind(r.message)}" for r in requests if r.message)
    return {
        "requests": len(requests),
        "answered": len(answered),
        "answered_share": round(len(answered) / max(1, len(requests)), 4),
        "wrong": sum(r.wrong for r in requests),
        "lost": sum(is_lost(r, budget) for r in requests),
        "statuses": dict(statuses.most_common()),
        "errors": dict(errors.most_common(MOST_ERRORS)),
        "asked_again": sum(r.attempt > 1 for r in requests),
        "latency_ms": {
            "p50": round(percentile(latencies, 0.50), 2),
            "p90": round(percentile(latencies, 0.90), 2),
            "p99": round(percentile(latencies, 0.99), 2),
            "max": round(max(latencies, default=0.0), 2),
        },
        "longest_gap_ms": round(max(gaps) * 1e3, 1),
    }


def failures(doc: Mapping[str, Any], at_least: float) -> list[str]:
    """The reasons why a run fails, in words; none where it passed. at_least: answered share."""
    reasons = []
    if doc["wrong"]:
        reasons.append(f"{doc['wrong']} answers were wrong")
    if doc["lost"]:
        reasons.append(f"{doc['lost']} requests ended without an outcome")
    if doc["answered_share"] < at_least:
        text = f"{doc['answered_share']:.1%} of the requests were answered, not {at_least:.1%}"
        reasons.append(text)
    return reasons


SERVER = "server"
WARM_UP = 20  # requests before the load: the client learns where the nodes are


@dataclass(frozen=True)
class ChaosPlan:
    """seed: of the faults. rate: requests a second. every: seconds between two faults. seconds: of
    load. budget: seconds of each request. nodes_per_stage: beside one fallback. model: `digits` or
    an ONNX file. server: whether the embedded server is a victim too. at_least: the share of the
    requests (0..1) that must be answered."""

    seed: int = 1
    rate: float = 60.0
    every: float = 1.5
    seconds: float = 60.0
    budget: float = 5.0
    nodes_per_stage: int = 1
    model: str = "digits"
    server: bool = False
    at_least: float = 0.0

    def roles(self) -> list[str]:
        """The roles of the node processes."""
        stages = range(1, STAGES + 1)
        return [f"shard-{k}" for k in stages for _ in range(self.nodes_per_stage)] + ["fallback"]


async def play(plan: ChaosPlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `InvalidArgument`, `Unavailable`."""
    workload = await asyncio.to_thread(make_workload, plan.model, plan.seed)
    victims = [*plan.roles(), *([SERVER] if plan.server else [])]
    faults = schedule(plan.seed, plan.seconds, plan.every, len(victims))
    async with contextlib.AsyncExitStack() as stack:
        # The folder outlives the mesh, which puts the model back from there.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="swarm-chaos-"))) / "model"
        await asyncio.to_thread(write_dir, folder, workload.model.manifest, workload.model.files)
        local = await stack.enter_async_context(mesh_of())
        await local.keep(folder)
        for role in plan.roles():
            local.start(role, workload.model.manifest.model)
        await local.ready()
        progress(f"{len(faults)} faults in {plan.seconds:g} s …")
        async with swarm.connect(local.url, local.name) as mesh:
            await _warm_up(mesh, workload)
            falling = asyncio.create_task(fall(local, faults, victims, time.monotonic()))
            requests = await ask_steadily(mesh, workload, plan.rate, plan.seconds, plan.budget)
            played = await falling
        restarts = sum(node.restarts for node in local.supervisor.nodes)
    return {
        "rule": rule(plan.every, victims),
        "seed": plan.seed,
        "model": plan.model if plan.model == DIGITS else os.path.basename(plan.model),
        "nodes_per_stage": plan.nodes_per_stage,
        "requests_per_s": plan.rate,
        "seconds": plan.seconds,
        "budget_ms": plan.budget * 1e3,
        "at_least": plan.at_least,
        "faults_drawn": len(faults),
        "faults_fallen": sum(fault["fell"] for fault in played),
        "restarts": restarts,
        **request_figures(requests, plan.seconds, plan.budget),
        "faults": played,
    }


async def _warm_up(mesh: swarm.Mesh, workload: Workload) -> None:
    for inputs in workload.inputs[:WARM_UP]:
        await mesh.infer(workload.model.manifest.model, inputs, 5.0)


async def fall(
    local: LocalMesh, faults: Sequence[Fault], victims: Sequence[str], began: float
) -> list[dict[str, Any]]:
    """Send each fault's signal when its moment has come; no process is left stopped."""
    played = []
    loop = asyncio.get_running_loop()
    stopped: list[tuple[asyncio.TimerHandle, int]] = []
    try:
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            pid = _pid_of(local, fault.victim)
            fell = pid > 0 and _signal(pid, fault.kind.number)
            if fell and fault.stopped:
                timer = loop.call_later(fault.stopped, _signal, pid, signal.SIGCONT)
                stopped.append((timer, pid))
            played.append(
                {
                    "at_s": round(fault.at, 3),
                    "signal": str(fault.kind),
                    "victim": victims[fault.victim],
                    "pid": pid,
                    "stopped_s": round(fault.stopped, 3),
                    "fell": fell,
                }
            )
    finally:
        for timer, pid in stopped:
            timer.cancel()
            _signal(pid, signal.SIGCONT)
    return played


def _pid_of(local: LocalMesh, victim: int) -> int:
    """The process that lives in the victim's place now; 0 where none does."""
    nodes = local.supervisor.nodes
    if victim < len(nodes):
        return nodes[victim].pid if nodes[victim].alive else 0
    server = local.server
    return server.pid if server is not None and server.alive else 0


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a child; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def misses(document: dict[str, Any]) -> list[str]:
    """As `failures`, with the way to repeat them."""
    again = f"; `--seed {document['seed']}` plays the same faults again"
    return [reason + again for reason in failures(document, document["at_least"])]


def show(document: dict[str, Any]) -> None:
    """The figures, for people; the faults one by one are in the JSON document."""
    out.print(facts(document, "faults"))


CHAOS = Benchmark("chaos", play, show, misses=misses)
