"""`swarm bench autoscale`: three times the load, and two idle devices that may help.

Three devices of a quarter of a core each, by quotas of control groups. *auto*: three nodes of role
`auto`; one fills the only slot, two are idle until the load wants them. Beside it one fixed node,
and three. The usual load is a share of the rate that one device's CPU suffices for, so that the
step is more than one device serves and less than two do, on each machine. Requests come at their
moments, even if the mesh is behind; each answer is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
from support.auto_meshes import start_auto, until_settled
from support.meshes import READY, mesh_of
from support.starved import starved

import swarm
from bench.asked import Asked, Workload, ask, ask_service, is_lost
from bench.fleets.workloads import workload_of
from bench.report.charts import new_chart, save_chart
from bench.report.figure import percentile, significant
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import LocalMesh
from shards.manifest import write_dir

AUTO, ONE, THREE = "auto", "fixed one", "fixed three"
DEVICES = 3
SHARE, PERIOD = 0.25, 0.01  # of a core; seconds of the quota
SIZE = 128  # pixels of the picture's height and width
USUAL, STEP = 0.4, 3  # of one device's rate, and times of that behind the step
CLOSED = 4  # requests at once that measure one device's rate
SAMPLE, SAMPLES = 1.0, 10  # seconds of a sample of that rate, and how many there are at most
STEADY = 1.05  # times the best sample that two further ones must not reach
BUDGET = 2.0  # seconds
WINDOW = 2.0  # seconds of a p99 in a series
INSIDE_FOR = 10.0  # seconds at least
LOOK_EVERY = 0.5  # seconds
WITHIN = 15.0  # seconds in which p99 is inside its objective again
SWING = 60.0  # seconds of one period of the swinging load
MEMORY_MB = 100
NODES = {
    "p99_before_ms": "p99",
    "p99_behind_ms": "behind",
    "p99_inside_ms": "inside",
    "inside_after_s": "after s",
    "node_seconds": "node s",
    "changes": "moves",
    "turns": "turns",
}
REQUESTS = {name: name for name in ("asked", "refused", "late", "failed", "lost", "wrong")}
Rate = Callable[[float], float]
"""Requests a second, by seconds since the load began."""


@dataclass(frozen=True)
class AutoscalePlan:
    """before, after: seconds around the step. rounds: of all ways, by turns. objective: seconds of
    p99. swing: minutes of a swinging load instead, on auto nodes alone. helped_for: the load ends
    so many seconds after a further node serves; None: it does not."""

    before: float = 10.0
    after: float = 35.0
    rounds: int = 1
    objective: float = 0.1
    swing: float = 0.0
    ways: tuple[str, ...] = (AUTO, ONE, THREE)
    helped_for: float | None = None


class Seen(NamedTuple):
    """A look at the nodes. at: seconds since the load began. nodes: that serve the stage. busy: the
    share of the time in which each of them computes, as they tell."""

    at: float
    nodes: int
    busy: float


async def measure(plan: AutoscalePlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable`."""
    workload = await asyncio.to_thread(workload_of, 1, SIZE)
    served = await served_by_one(workload)
    progress(f"one device serves {served:.0f} requests/s")
    usual = USUAL * served
    runs = []
    if plan.swing:
        seconds = plan.swing * 60

        def swings(at: float) -> float:
            return usual * (1 + (STEP - 1) * (1 - math.cos(2 * math.pi * at / SWING)) / 2)

        progress(f"a load that swings for {plan.swing:g} minutes")
        runs.append(await _run(AUTO, workload, swings, seconds, plan))
    else:

        def steps(at: float) -> float:
            return usual * (1 if at < plan.before else STEP)

        for number, way in by_turns(plan.rounds, plan.ways):
            progress(f"round {number}: {way}")
            runs.append(await _run(way, workload, steps, plan.before + plan.after, plan))
    return {
        "device_rate": significant(served),
        "usual_rate": significant(usual),
        "step": STEP,
        "share": SHARE,
        "objective_ms": plan.objective * 1e3,
        "runs": runs,
        "figures": {},
    }


async def _run(
    way: str, workload: Workload, rate: Rate, seconds: float, plan: AutoscalePlan
) -> dict[str, Any]:
    """One load on one way."""
    async with devices(way, workload) as (local, mesh):
        asked, seen = await load(
            local, mesh, workload, at_rate(rate, seconds), helped_for=plan.helped_for
        )
    seen = [each for each in seen if each.at <= seconds]
    step = {} if plan.swing else step_of(asked, plan)
    return {"way": way, **step, **counted(asked), **used(seen), "series": series(asked, seen)}


async def load(
    local: LocalMesh,
    mesh: swarm.Mesh,
    workload: Workload,
    moments: Iterator[float],
    by_service: bool = False,
    helped_for: float | None = None,
) -> tuple[list[Asked], list[Seen]]:
    """Requests, each at its moment (seconds since the load began), and looks at the nodes.
    by_service: a node answers for the mesh. helped_for: see `AutoscalePlan`."""
    asked: list[Asked] = []
    seen: list[Seen] = []
    began = time.monotonic()
    asking = ask_service if by_service else ask
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look(local, began, seen))
        for index, at in enumerate(moments):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            asked.append(Asked(time.monotonic() - began))
            group.create_task(asking(mesh, workload, index, BUDGET, began, asked[-1]))
            if helped_for is not None and at - helped_at(seen) >= helped_for:
                break
        looking.cancel()
    return asked, seen


def helped_at(seen: Sequence[Seen]) -> float:
    """Seconds after which more nodes than at first serve; infinite while there are none."""
    return next((each.at for each in seen if each.nodes > seen[0].nodes), math.inf)


def at_rate(rate: Rate, seconds: float) -> Iterator[float]:
    """The moments of an open loop."""
    at = 0.0
    while at < seconds:
        yield at
        at += 1 / rate(at)


async def served_by_one(workload: Workload, by_service: bool = False) -> float:
    """Requests a second that one device's share of a core suffices for: by the CPU time that it
    takes for a request, because a neighbour on a busy machine delays requests, but hardly makes
    them cost more. The best of several samples. by_service: see `load`."""
    model, done, rates = workload.model.manifest.model, 0, list[float]()

    async def one_behind_the_other(mesh: swarm.Mesh) -> None:
        nonlocal done
        asking = mesh.ask_service if by_service else mesh.infer
        while True:
            await asking(model, workload.inputs[0], BUDGET)
            done += 1

    async with devices(ONE, workload) as (local, mesh), asyncio.TaskGroup() as group:
        process = psutil.Process(local.supervisor.nodes[0].pid)
        clients = [group.create_task(one_behind_the_other(mesh)) for _ in range(CLOSED)]
        while len(rates) < SAMPLES and not _is_steady(rates):
            before, used_before = done, _cpu_seconds(process)
            await asyncio.sleep(SAMPLE)
            rates.append(SHARE * (done - before) / max(_cpu_seconds(process) - used_before, 0.01))
        for client in clients:
            client.cancel()
    return max(rates)


def _is_steady(rates: Sequence[float]) -> bool:
    return len(rates) > 2 and max(rates[-2:]) < STEADY * max(rates[:-2])


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.asynccontextmanager
async def devices(way: str, workload: Workload) -> AsyncIterator[tuple[LocalMesh, swarm.Mesh]]:
    """The devices of a way, held to their share, and a client that has had each answer once."""
    async with contextlib.AsyncExitStack() as stack:
        local = await stack.enter_async_context(_mesh(way, workload))
        for node in local.supervisor.nodes:
            await stack.enter_async_context(starved(node.pid, SHARE, PERIOD))
        mesh = await stack.enter_async_context(swarm.connect(local.url, local.name))
        for inputs in workload.inputs:
            await mesh.infer(workload.model.manifest.model, inputs, READY)
        yield local, mesh


@contextlib.asynccontextmanager
async def _mesh(way: str, workload: Workload) -> AsyncIterator[LocalMesh]:
    """The devices of a way, ready; nothing else loads the model."""
    model = workload.model.manifest.model
    with TemporaryDirectory(prefix="swarm-autoscale-") as parent:
        folder = Path(parent) / "model"
        await asyncio.to_thread(write_dir, folder, workload.model.manifest, workload.model.files)
        async with mesh_of() as local:
            await local.keep(folder)
            for _ in range(1 if way == ONE else DEVICES):
                if way == AUTO:
                    start_auto(local, model, MEMORY_MB)
                else:
                    local.start("shard-1", model)
            await local.ready(READY)
            if way == AUTO:
                await until_settled(local, "the start")
            yield local


async def _look(local: LocalMesh, began: float, seen: list[Seen]) -> None:
    pids = {node.pid for node in local.supervisor.nodes}
    while True:
        await asyncio.sleep(LOOK_EVERY)
        serving = [s for s in local.statuses.values() if s["pid"] in pids and s["stages"]]
        rows = [row for status in serving for row in status.get("wanted", ())]
        told = [row["busy"] / row["nodes"] for row in rows if row["nodes"]]
        seen.append(Seen(time.monotonic() - began, len(serving), max(told, default=0.0)))


def counted(asked: Sequence[Asked]) -> dict[str, int]:
    statuses = [each.status for each in asked]
    return {
        "asked": len(asked),
        "refused": statuses.count("RESOURCE_EXHAUSTED"),
        "late": statuses.count("DEADLINE_EXCEEDED"),
        "failed": len(asked)
        - sum(statuses.count(s) for s in ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")),
        "lost": sum(is_lost(each, BUDGET) for each in asked),
        "wrong": sum(each.wrong for each in asked),
    }


def used(seen: Sequence[Seen]) -> dict[str, Any]:
    """What the nodes that serve cost, and how often their number went up and down."""
    steps = [b.nodes - a.nodes for a, b in pairwise(seen) if a.nodes != b.nodes]
    return {
        "node_seconds": significant(
            sum(before.nodes * (after.at - before.at) for before, after in pairwise(seen))
        ),
        "changes": len(steps),
        "turns": sum((one > 0) != (other > 0) for one, other in pairwise(steps)),
    }


def series(asked: Sequence[Asked], seen: Sequence[Seen]) -> list[tuple[float, int, float]]:
    """Seconds, nodes that serve, milliseconds of p99 in the window before."""
    found = []
    for at, nodes, _ in seen:
        window = [each for each in asked if at - WINDOW <= each.sent < at]
        if window:
            found.append((round(at, 2), nodes, p99(window)))
    return found


def p99(asked: Sequence[Asked]) -> float:
    """Milliseconds; a request that was not answered takes its budget."""
    return significant(1e3 * percentile([_seconds(each) for each in asked], 0.99))


def _seconds(asked: Asked) -> float:
    return asked.done - asked.sent if asked.status == "OK" else BUDGET


def step_of(asked: Sequence[Asked], plan: AutoscalePlan) -> dict[str, Any]:
    """What the step did: milliseconds of p99 before it, behind it, and once it is inside its
    objective for all requests that follow; the seconds until then, None: not ten before the end."""
    behind = [each for each in asked if each.sent >= plan.before]
    document: dict[str, Any] = {
        "p99_before_ms": p99([each for each in asked if each.sent < plan.before]),
        "p99_behind_ms": p99(behind),
        "p99_inside_ms": None,
        "inside_after_s": None,
    }
    lasted = asked[-1].sent - plan.before
    for tenth in range(round(10 * (lasted - INSIDE_FOR))):
        rest = [each for each in behind if each.sent >= plan.before + tenth / 10]
        if p99(rest) <= plan.objective * 1e3:
            return document | {"p99_inside_ms": p99(rest), "inside_after_s": tenth / 10}
    return document


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure`."""
    title = (
        f"{document['usual_rate']:.3g} requests/s and {document['step']} times as many; devices of "
        f"{document['share']:g} of a core; objective: p99 of {document['objective_ms']:g} ms"
    )
    out.print(title, highlight=False)
    show_runs(document["runs"], NODES, "nodes")
    show_runs(document["runs"], REQUESTS, "requests")


def show_runs(runs: Sequence[dict[str, Any]], columns: dict[str, str], first: str) -> None:
    """A table of these columns, with a row for each run. first: the heading of its way."""
    columns = {name: heading for name, heading in columns.items() if name in runs[0]}
    table = new_table("", first, *columns.values())
    for run in runs:
        table.add_row(run["way"], *("never" if run[n] is None else f"{run[n]:g}" for n in columns))
    out.print(table)


def draw(
    document: dict[str, Any], path: Path, title: str = "load that grows to three times as much"
) -> None:
    """Nodes that serve and p99, over time."""
    figure, plot = new_chart(title, "seconds", "nodes that serve")
    other = plot.twinx()
    other.set_ylabel("p99 in ms (dotted)")
    other.set_yscale("log")
    for number, run in enumerate(document["runs"]):
        times = [at for at, _, _ in run["series"]]
        color = f"C{number}"
        nodes = [count for _, count, _ in run["series"]]
        plot.step(times, nodes, where="post", color=color, label=run["way"])
        other.plot(times, [ms for _, _, ms in run["series"]], ":", color=color)
        objective = run.get("objective_ms", document.get("objective_ms"))
        other.axhline(objective, color=color if "objective_ms" in run else "grey", linewidth=0.8)
    plot.set_yticks(range(DEVICES + 1))
    save_chart(figure, plot, path)


def misses(document: dict[str, Any]) -> list[str]:
    """Sentences of what must not be."""
    found = []
    for run in document["runs"]:
        way = run["way"]
        if run["wrong"] or run["lost"]:
            found.append(f"{way}: {run['wrong']} answers were wrong, {run['lost']} were lost")
        if way != AUTO:
            continue
        if "inside_after_s" in run:
            after = run["inside_after_s"]
            if after is None or after > WITHIN:
                said = "never" if after is None else f"after {after:g} s"
                found.append(f"auto: p99 is inside its objective {said}, not within {WITHIN:g} s")
        elif run["turns"]:
            found.append(f"auto: nodes went to and fro {run['turns']} times")
    return found


AUTOSCALE = Benchmark("autoscale", measure, show, draw, misses)
