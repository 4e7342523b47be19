"""`swarm bench overload --high 5`: what a few requests of high priority feel of an overload.

Three phases by turns, for each way in: `quiet`, the high ones alone; `none`, all at a multiple of
the capacity, without priorities; `with`, the same, where a few are high. Real nodes, whose runs
wait as for a device (`bench.cost.waiting_node`).

Runs are not pre-empted. So a high one may find a run that has begun at each stage up to the last
saturated one, and waits for its end: at most the sum of these runs. Behind that stage requests come
no closer than its runs. And who is high takes his turns from the rest: of a capacity C, of which
they take H, no more than C - H is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.gateways import address, gateway_of
from support.meshes import READY, mesh_of, split_digits

from bench.cost.waiting_node import RUNS
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from nodes.cli.bench import reach_benchmarks
from nodes.console import out
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from swarm.errors import Status
from swarm.wire.urgency import IN_USE_FOR

# Seconds of each phase that are not counted: the first high one may find full lanes.
SETTLE = 1.5
SATURATED = 0.95  # of the load of the slowest stage, from which another one is saturated too
WAITING = "bench.cost.waiting_node"
PHASES = ("none", "quiet", "with")
IMAGE = np.zeros((1, 1, 8, 8), np.float32)
Ask = Callable[[str], Awaitable[bool]]  # by priority; whether it was answered


@dataclass(frozen=True)
class PrioritiesPlan:
    """high: percent of the requests. factor: offered load in capacities. budget: seconds of a
    request. runs: seconds of a run, by stage. seconds: of each phase."""

    high: float = 5.0
    factor: float = 3.0
    budget: float = 1.0
    runs: tuple[float, ...] = (0.02, 0.02, 0.02)
    seconds: float = 6.5
    rounds: int = 2


@dataclass(frozen=True)
class Asked:
    """A request of the load. seconds: since it was due."""

    high: bool
    good: bool
    seconds: float


async def measure(plan: PrioritiesPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where a node does not come up."""
    reach_benchmarks()
    os.environ[RUNS] = ",".join(f"{run:g}" for run in plan.runs)
    model = await asyncio.to_thread(split_digits, stages=len(plan.runs))
    found: dict[str, Any] = {}
    try:
        async with mesh_of() as local:
            await push(local, model.manifest.to_json(), model.files)
            for stage in range(len(plan.runs)):
                _start(local, f"shard-{stage + 1}")
            await local.ready(READY)
            gateway = await gateway_of(local, "--http", "0")
            ways = {
                "Python client": _by_client(local, plan.budget),
                "gateway": _by_gateway(address(local, gateway), plan.budget),
            }
            for number, way in by_turns(plan.rounds, tuple(ways)):
                for phase in PHASES:
                    progress(f"round {number}, {way}, {phase} …")
                    if phase == "none" and found:
                        await asyncio.sleep(IN_USE_FOR + 0.5)  # priorities are in use no more
                    asked = await _load(ways[way], plan, phase)
                    found.setdefault(way, {}).setdefault(phase, []).append(asked)
    finally:
        del os.environ[RUNS]
    load = [round(each, 1) for each in os.getloadavg()]
    return {
        "high_percent": plan.high,
        "factor": plan.factor,
        "budget_ms": plan.budget * 1e3,
        "runs_ms": [round(run * 1e3, 3) for run in plan.runs],
        "load_average": load,
        "ways": {way: figures(plan, phases) for way, phases in found.items()},
    }


def _start(local: LocalMesh, role: str) -> None:
    arguments = ["--role", role, "--nats", local.url, "--mesh", local.name, "--model", "digits"]
    if local.trusted:
        arguments += ["--trust", local.trusted]
    log = local.logs / f"{role}.log"
    local.supervisor.add(NodeProcess(role, arguments, log, program=WAITING))


def figures(plan: PrioritiesPlan, phases: dict[str, list[list[Asked]]]) -> dict[str, Any]:
    """The medians of the rounds, and ratios within each."""
    seconds = plan.seconds - SETTLE
    rows = []
    for quiet, none, high in zip(
        *(phases[name] for name in ("quiet", "none", "with")), strict=True
    ):
        p50, p99 = ([percentile(_times(each), q) for each in (quiet, high)] for q in (0.5, 0.99))
        capacity, first = _good(none, (False, True)), _good(high, (True,))
        rest, rest_of_none = _good(high, (False,)), _good(none, (False,))
        rows.append(
            {
                "quiet_p50_ms": p50[0] * 1e3,
                "quiet_p99_ms": p99[0] * 1e3,
                "high_p50_ms": p50[1] * 1e3,
                "high_p99_ms": p99[1] * 1e3,
                "p50_ratio": p50[1] / p50[0],
                "p99_ratio": p99[1] / p99[0],
                "p99_bound": 1 + _waits(plan.runs) / p99[0],
                "goodput_per_s": capacity / seconds,
                "goodput_ratio": (rest + first) / max(1, capacity),
                "rest_ratio": rest / max(1, rest_of_none),
                "rest_bound": (capacity - first) / max(1, rest_of_none),
            }
        )
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def _waits(runs: tuple[float, ...]) -> float:
    """Seconds of the runs that a high one may find begun."""
    last = max(n for n, run in enumerate(runs) if run >= SATURATED * max(runs))
    return sum(runs[: last + 1])


def _times(asked: list[Asked]) -> list[float]:
    return [each.seconds for each in asked if each.high and each.good]


def _good(asked: list[Asked], high: tuple[bool, ...]) -> int:
    return sum(each.good for each in asked if each.high in high)


async def _load(ask: Ask, plan: PrioritiesPlan, phase: str) -> list[Asked]:
    """Each that is due after `SETTLE`."""
    rate, every = plan.factor / max(plan.runs), round(100 / plan.high)
    asked: list[Asked] = []

    async def one(number: int, due: float) -> None:
        high = number % every == 0
        good = await ask("high" if high and phase != "none" else "")
        took = time.monotonic() - due
        if number >= SETTLE * rate:
            asked.append(Asked(high, good and took <= plan.budget, took))

    async with asyncio.TaskGroup() as group:
        async for number, due in paced(rate, int(rate * plan.seconds)):
            if phase != "quiet" or number % every == 0:
                group.create_task(one(number, due))
    return asked


def _by_client(local: LocalMesh, budget: float) -> Ask:
    async def ask(priority: str) -> bool:
        result = await local.mesh.ask("digits", {"image": IMAGE}, budget, priority=priority)
        return result.status is Status.OK

    return ask


def _by_gateway(url: str, budget: float) -> Ask:
    """Each request has a connection of its own."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    tensor = {"name": "image", "shape": IMAGE.shape, "datatype": "FP32", "data": [0.0] * 64}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": int(budget * 1e6)}}).encode()
    head = (
        f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n"
    )

    async def ask(priority: str) -> bool:
        named = f"swarm-priority: {priority}\r\n" if priority else ""
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"{head}{named}\r\n".encode() + body)
            async with asyncio.timeout(budget + 5):
                answer = await reader.read()
        except OSError:
            return False
        finally:
            writer.close()
        return answer.startswith(b"HTTP/1.1 200")

    return ask


def misses(document: dict[str, Any]) -> list[str]:
    """What the mesh adds to what cannot be avoided, by more than a tenth."""
    lines = []
    for way, found in document["ways"].items():
        if found["p99_ratio"] > 1.1 * found["p99_bound"]:
            lines.append(
                f"{way}: p99 of high ones is {found['p99_ratio']:g} of the quiet one, "
                f"where runs that have begun explain {found['p99_bound']:g}"
            )
        if found["goodput_ratio"] < 0.95:
            lines.append(
                f"{way}: goodput is {found['goodput_ratio']:g} of the one without priorities"
            )
    return lines


def show(document: dict[str, Any]) -> None:
    runs = ", ".join(f"{run:g}" for run in document["runs_ms"])
    title = (
        f"{document['factor']:g} times the capacity, {document['high_percent']:g} % high, stages "
        f"of {runs} ms, load average {document['load_average'][0]:g}"
    )
    table = new_table(title, "figure", *document["ways"])
    for name in next(iter(document["ways"].values())):
        values = (f"{found[name]:g}" for found in document["ways"].values())
        table.add_row(name.replace("_", " "), *values)
    out.print(table)


PRIORITIES = Benchmark("priorities", measure, show, misses=misses)
