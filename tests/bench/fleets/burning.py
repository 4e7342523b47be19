"""`swarm bench autoscale --burning MINUTES`: an objective that is missed below 70 % of use.

The devices of `autoscaling`, under bursts: the last request of a burst waits for all others. On one
device it misses the objective, on two it does not (*in reach*); or even the first one misses it,
however many there are (*out of reach*). Nodes answer for the mesh, because who answers measures the
objective.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.asked import Workload
from bench.fleets.autoscaling import (
    AUTO,
    DEVICES,
    REQUESTS,
    SHARE,
    SIZE,
    counted,
    devices,
    draw,
    helped_at,
    load,
    p99,
    series,
    served_by_one,
    show_runs,
    used,
)
from bench.fleets.workloads import workload_of
from bench.report.figure import significant
from bench.report.frame import Benchmark, Progress
from nodes.console import out
from swarm.fleet.scaling import HIGH
from swarm.flow.objective import Objective

BURST = 20  # requests at once
USE = 0.65  # of one device: busy above 30 %, below which nodes help nobody, and below 70 %
WAYS = {"in reach": 0.6, "out of reach": 0.01}
"""Objectives of p99, in times that one device takes for a burst; two take 0.5."""
SETTLES = 5.0  # seconds behind a further node until its p99 counts
COLUMNS = {
    "objective_ms": "aim ms",
    "helped_after_s": "helped s",
    "p99_before_ms": "p99",
    "p99_helped_ms": "then",
    "busy": "busy",
    "nodes": "nodes",
    "node_seconds": "node s",
    "turns": "turns",
}


@dataclass(frozen=True)
class BurningPlan:
    """seconds: of each load. helped_for: see `AutoscalePlan`."""

    seconds: float = 60.0
    ways: tuple[str, ...] = tuple(WAYS)
    helped_for: float | None = None


async def measure(plan: BurningPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable`."""
    workload = await asyncio.to_thread(workload_of, 1, SIZE)
    served = await served_by_one(workload, by_service=True)
    runs = []
    for way in plan.ways:
        progress(f"one device serves {served:.0f} requests/s; an objective {way}")
        runs.append(await _run(way, workload, served, plan))
    return {
        "device_rate": significant(served),
        "burst": BURST,
        "every_ms": significant(1e3 * BURST / (USE * served)),
        "share": SHARE,
        "runs": runs,
        "figures": {},
    }


async def _run(way: str, workload: Workload, served: float, plan: BurningPlan) -> dict[str, Any]:
    objective = significant(1e3 * WAYS[way] * BURST / served)
    async with devices(AUTO, workload) as (local, mesh):
        model = workload.model.manifest.model
        await local.mesh.registry.set_objective(model, Objective(p99_ms=objective))
        moments = in_bursts(BURST / (USE * served), plan.seconds)
        asked, seen = await load(local, mesh, workload, moments, True, plan.helped_for)
    seen = [each for each in seen if each.at <= plan.seconds]
    helped = helped_at(seen)
    alone = [each for each in asked if each.sent < helped]
    after = [each for each in asked if each.sent >= helped + SETTLES]
    return {
        "way": way,
        "objective_ms": objective,
        "helped_after_s": significant(helped) if after else None,
        "p99_before_ms": p99(alone),
        "p99_helped_ms": p99(after) if after else None,
        "busy": significant(max(each.busy for each in seen if each.at <= helped)),
        "nodes": seen[-1].nodes,
        **counted(asked),
        **used(seen),
        "series": series(asked, seen),
    }


def in_bursts(every: float, seconds: float) -> Iterator[float]:
    """The moments of requests that come `BURST` at once."""
    for number in range(int(seconds / every)):
        for _ in range(BURST):
            yield number * every


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure`."""
    title = (
        f"{document['burst']} requests at once each {document['every_ms']:.3g} ms; devices of "
        f"{document['share']:g} of a core"
    )
    out.print(title, highlight=False)
    show_runs(document["runs"], COLUMNS, "objective")
    show_runs(document["runs"], REQUESTS, "requests")


def misses(document: dict[str, Any]) -> list[str]:
    """Sentences of what must not be."""
    found = []
    for run in document["runs"]:
        way = run["way"]
        if run["wrong"] or run["lost"]:
            found.append(f"{way}: {run['wrong']} answers were wrong, {run['lost']} were lost")
        if run["busy"] > HIGH:
            found.append(f"{way}: the device was busy for {run['busy']:.0%}, not below {HIGH:.0%}")
        if run["turns"]:
            found.append(f"{way}: nodes went to and fro {run['turns']} times")
        if way == "in reach" and not (run["p99_helped_ms"] or 1e9) <= run["objective_ms"]:
            found.append(f"{way}: no node more brought p99 inside {run['objective_ms']:g} ms")
        if way == "out of reach" and run["nodes"] == DEVICES:
            found.append(f"{way}: all devices serve, and none of them helps")
    return found


BURNING = Benchmark("autoscale-burning", measure, show, partial(draw, title="objectives"), misses)
