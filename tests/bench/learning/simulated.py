"""The report of a simulated fleet that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.learning.report import run_report

from bench.report.charts import new_chart, save_chart
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from bench.simulations import SimulationPlan, missed_rows
from nodes.console import out


def simulate(plan: SimulationPlan, progress: Progress) -> dict[str, Any]:
    """The report of all situations."""
    sizes = (32, 64, 128, 256) if plan.full else (32,)
    report = run_report(sizes=sizes, seed=plan.seed, progress=progress)
    return {**report, "figures": {}}


def show(document: dict[str, Any]) -> None:
    """A line for each situation."""
    title = f"digits by softmax regression, {document['rounds']} rounds; central training: "
    figures = ("nodes", "mean", "worst", "kB out", "kB in", "apart", "target")
    table = new_table(f"{title}{document['central']:.3f}", "situation", "graph", *figures, left=2)
    for row in document["rows"]:
        target = "" if "met" not in row else "[green]met[/]" if row["met"] else "[red]missed[/]"
        table.add_row(
            row["scenario"],
            row["graph"],
            str(row["nodes"]),
            f"{row['mean']:.3f}",
            f"{row['worst']:.3f}",
            str(row["sent_kb"]),
            str(row["received_kb"]),
            f"{row['distance']:.2f}" if "distance" in row else "",
            target,
        )
    out.print(table)


def draw(document: dict[str, Any], path: Path) -> None:
    """Accuracy over the bytes that a node sends."""
    figure, plot = new_chart("learning without a server", "kB sent by a node", "accuracy")
    for row in document["rows"]:
        label = f"{row['scenario']}, {row['nodes']} nodes, {row['graph']}"
        plot.plot([row["sent_kb"]], [row["mean"]], "o", label=label)
    plot.axhline(document["central"], color="grey", label="central training")
    save_chart(figure, plot, path)


LEARNING = Benchmark("learning", simulate, show, draw, missed_rows)
