"""The result of `swarm bench throughput` as tables and as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cost.throughput.measure import FLOORS
from bench.report.charts import new_chart, save_chart
from bench.report.figure import Figure

DRAWN_CONTENDERS = ("mesh", "up", *FLOORS)


def show(document: dict[str, Any]) -> None:
    """A table for each pipeline, a row per concurrency."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    for pipeline in document["pipelines"]:
        name = pipeline["name"]
        cuts = " and ".join(f"{size / 1024:.0f} KiB" for size in pipeline["cut_bytes"])
        table = Table(
            box=box.SIMPLE,
            title=f"{name}: {pipeline['compute_ms']:.3g} ms of compute, features of {cuts}",
            title_justify="left",
        )
        for heading in ("at once", "mesh /s", "p50 ms", "p99", "CPU ms", "overlap", "workers /s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("up /s", "up p50", "mesh / workers", "mesh / whole", "up / workers"):
            table.add_column(heading, justify="right", no_wrap=True)
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
