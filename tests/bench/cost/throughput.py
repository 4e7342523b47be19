"""What a pipeline yields, beside the same cores without a mesh.

Floors, measured in the same run, slice by slice:

- *workers*: as many processes as there are cores, each running all stages in turn on one thread.
  There is no transport and no idle core, so these cores cannot answer more.
- *whole*: one process with the unsplit model and as many threads as all stages have together.

Pipelining shows as *overlap*, the average number of requests that are computed at the same time:
throughput x latency of a lone request (Little's law). 1 means one after another.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cost.closed_loop import (
    Load,
    MeshLoad,
    Sample,
    WorkerLoad,
    requests_for,
)
from bench.cost.pipelines import Pipeline, build_pipeline
from bench.report.charts import new_chart, save_chart
from bench.report.figure import Better, Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.machine import usable_cores
from bench.report.tables import new_table
from bench.rivals.catalogue import MESH, MESH_BY_UP
from bench.rivals.side_by_side import side_by_side
from bench.rivals.systems.mesh_client import MeshContender
from bench.rivals.ultraface import NoModel
from nodes.console import out

OURS = ("mesh", "up")
"""The mesh with nodes that start from files cut before; the mesh by `swarm up`, as a user runs it,
which cuts the model itself and has a fallback node."""
FLOORS = ("workers", "whole")
LEAST_SHARE_OF_WORKERS = 0.93
"""The share of the workers' throughput that a compute-bound pipeline must reach."""
COMPUTE_BOUND_MS = 5.0
"""Compute per request from which a pipeline counts as compute-bound."""

Key = tuple[str, int]  # contender, concurrency


@dataclass(frozen=True)
class ThroughputPlan:
    """models: names of `PIPELINES`. concurrency: requests at once, a slice for each number.
    seconds: of one slice. stages: processes of a pipeline, one thread each. delivery: `durable` or
    `fast`. ultraface: the detector's file or folder, or empty.
    """

    models: Sequence[str]
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    rounds: int = 3
    seconds: float = 2.0
    stages: int = 3
    delivery: str = "durable"
    ultraface: str = ""


def measure_throughput(plan: ThroughputPlan, progress: Progress = lambda _: None) -> dict[str, Any]:
    """The document of `swarm bench throughput`. Raises `WrongAnswer`, `KeyError`."""
    pipelines, absent = [], {}
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="throughput-") as root:
        for name in plan.models:
            progress(f"{name}: splitting …")
            try:
                pipeline = build_pipeline(name, Path(root) / name, plan.stages, plan.ultraface)
            except NoModel as error:
                absent[name] = str(error)
                continue
            samples = _measure(plan, pipeline, progress)
            found = summarise(samples, plan.concurrency)
            figures |= {f"{name}/{key}": figure for key, figure in found.items()}
            pipelines.append(_entry(pipeline, samples, found, plan.concurrency))
    return {
        "delivery": plan.delivery,
        "stages": plan.stages,
        "cores": usable_cores(),
        "concurrency": list(plan.concurrency),
        "rounds": plan.rounds,
        "target": LEAST_SHARE_OF_WORKERS,
        "pipelines": pipelines,
        "unavailable": absent,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def _measure(
    plan: ThroughputPlan, pipeline: Pipeline, progress: Progress
) -> dict[Key, list[Sample]]:
    directory = pipeline.workload.directory
    samples: dict[Key, list[Sample]] = {}
    with contextlib.ExitStack() as stack:
        running, absent = stack.enter_context(
            side_by_side(
                pipeline.workload,
                {"mesh": MESH[plan.delivery], "up": MESH_BY_UP[plan.delivery]},
            )
        )
        if absent:
            raise NoModel(f"{plan.delivery} delivery: {'; '.join(absent.values())}")
        ours = {n: found for n, found in running.items() if isinstance(found, MeshContender)}
        workers = WorkerLoad(directory, "stages", 1, usable_cores())
        stack.callback(workers.stop)
        whole = WorkerLoad(directory, "whole", plan.stages, 1)
        stack.callback(whole.stop)
        loads: dict[str, Load] = {name: MeshLoad(mesh) for name, mesh in ours.items()}
        loads |= {"workers": workers, "whole": whole}
        for concurrency in plan.concurrency:
            counts = {
                name: requests_for(load, concurrency, plan.seconds) for name, load in loads.items()
            }
            for number, name in by_turns(plan.rounds, list(loads)):
                progress(f"{pipeline.name}: {concurrency} at a time, round {number}: {name}")
                sample = loads[name].run(counts[name], concurrency)
                samples.setdefault((name, concurrency), []).append(sample)
        if restarts := sum(mesh.restarts for mesh in ours.values()):
            raise RuntimeError(f"{pipeline.name}: {restarts} node processes ended meanwhile")
    return samples


def summarise(
    samples: Mapping[Key, Sequence[Sample]], concurrency: Sequence[int]
) -> dict[str, Figure]:
    """Figures of one pipeline. Ratios are taken within a round."""
    figures: dict[str, Figure] = {}

    def add(name: str, values: list[float], unit: str, better: Better, floor: bool = False) -> None:
        figures[name] = Figure.of(values, unit, better, floor)

    for (name, level), rounds in samples.items():
        key = f"{level}/{name}"
        add(f"{key}/requests_per_s", [s.per_s for s in rounds], "1/s", "higher")
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            values = [1e3 * percentile(s.latencies, share) for s in rounds]
            add(f"{key}/{label}_ms", values, "ms", "lower")
        spent = [1e3 * s.cpu / len(s.latencies) for s in rounds]
        add(f"{key}/cpu_ms_per_request", spent, "ms", "lower")
    for level, name, floor in itertools.product(concurrency, OURS, FLOORS):
        pairs = zip(samples[name, level], samples[floor, level], strict=True)
        ratios = [mine.per_s / theirs.per_s for mine, theirs in pairs]
        add(f"{level}/{name}/requests_per_s_over_{floor}", ratios, "x", "higher", True)
    if ("mesh", 1) in samples:
        alone = [percentile(s.latencies, 0.5) for s in samples["mesh", 1]]
        for level in concurrency:
            together = zip(samples["mesh", level], alone, strict=True)
            values = [sample.per_s * latency for sample, latency in together]
            add(f"{level}/mesh/overlap", values, "requests", "higher")
    for name in OURS:
        best = _best(samples, concurrency, name)
        add(f"{name}/best_over_workers", best, "x", "higher", True)
    return figures


def _best(samples: Mapping[Key, Sequence[Sample]], levels: Sequence[int], own: str) -> list[float]:
    """Per round: this mesh's best throughput over the workers' best, each at its own level."""
    rounds = len(samples[own, levels[0]])

    def most(name: str, number: int) -> float:
        return max(samples[name, level][number].per_s for level in levels)

    return [most(own, number) / most("workers", number) for number in range(rounds)]


def _entry(
    pipeline: Pipeline,
    samples: Mapping[Key, Sequence[Sample]],
    figures: Mapping[str, Figure],
    levels: Sequence[int],
) -> dict[str, Any]:
    best = figures["mesh/best_over_workers"]
    bound = pipeline.compute_ms >= COMPUTE_BOUND_MS
    return {
        "name": pipeline.name,
        "compute_ms": round(pipeline.compute_ms, 3),
        "cut_bytes": pipeline.cut_bytes,
        "compute_bound": bound,
        "best_over_workers": best.value,
        "met": best.value >= LEAST_SHARE_OF_WORKERS if bound else None,
        "verified": sum(len(s.latencies) for rounds in samples.values() for s in rounds),
        "refused": sum(s.refused for own in OURS for level in levels for s in samples[own, level]),
    }


DRAWN_CONTENDERS = ("mesh", "up", *FLOORS)


def show(document: dict[str, Any]) -> None:
    """A table for each pipeline, a row per concurrency."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    for pipeline in document["pipelines"]:
        name = pipeline["name"]
        cuts = " and ".join(f"{size / 1024:.0f} KiB" for size in pipeline["cut_bytes"])
        title = f"{name}: {pipeline['compute_ms']:.3g} ms of compute, features of {cuts}"
        ours = ("at once", "mesh /s", "p50 ms", "p99", "CPU ms", "overlap", "workers /s")
        ratios = ("up /s", "up p50", "mesh / workers", "mesh / whole", "up / workers")
        table = new_table(title, *ours, *ratios, left=0)
        for level in document["concurrency"]:
            key = f"{name}/{level}"
            overlap = figures.get(f"{key}/mesh/overlap")
            workers = figures[f"{key}/workers/requests_per_s"].value
            table.add_row(
                str(level),
                *(
                    f"{figures[f'{key}/mesh/{figure}'].value:.3g}"
                    for figure in ("requests_per_s", "p50_ms", "p99_ms", "cpu_ms_per_request")
                ),
                "-" if overlap is None else f"{overlap.value:.2f}",
                f"{workers:.4g}",
                f"{figures[f'{key}/up/requests_per_s'].value:.3g}",
                f"{figures[f'{key}/up/p50_ms'].value:.3g}",
                *(f"{figures[f'{key}/mesh/requests_per_s_over_{f}'].value:.2f}" for f in FLOORS),
                f"{figures[f'{key}/up/requests_per_s_over_workers'].value:.2f}",
            )
        out.print(table)
        best = figures[f"{name}/mesh/best_over_workers"]
        by_up = figures[f"{name}/up/best_over_workers"]
        text = f"best of the mesh over best of {document['cores']} workers: {best}"
        text += f"; by swarm up: {by_up}"
        if pipeline["met"] is not None:
            word = "[green]met[/]" if pipeline["met"] else "[bold red]missed[/]"
            text += f"; target {document['target']:g} {word}"
        text += f"; {pipeline['verified']} answers compared"
        if pipeline["refused"]:
            text += f"; {pipeline['refused']} refused by a full lane and sent again"
        out.print(text)
    for name, reason in document["unavailable"].items():
        out.print(f"{name}: {reason}", style="dim")


def draw(document: dict[str, Any], path: Path) -> None:
    """Throughput of the mesh over the workers' best, against concurrency: a line a pipeline."""
    figures = document["figures"]
    levels = document["concurrency"]
    figure, plot = new_chart("throughput", "requests at once", "share of the workers' best")
    for pipeline in document["pipelines"]:
        name = pipeline["name"]
        workers = max(figures[f"{name}/{n}/workers/requests_per_s"]["value"] for n in levels)
        for contender, style in zip(DRAWN_CONTENDERS, ("-o", "-s", ":", "--"), strict=True):
            values = [
                figures[f"{name}/{n}/{contender}/requests_per_s"]["value"] / workers for n in levels
            ]
            plot.plot(levels, values, style, label=f"{name}, {contender}")
    plot.set_xscale("log", base=2)
    plot.set_ylim(bottom=0)
    save_chart(figure, plot, path)


THROUGHPUT = Benchmark("throughput", measure_throughput, show, draw)
