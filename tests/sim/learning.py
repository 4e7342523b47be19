"""`swarm bench learning`: sparse deltas instead of a server, simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report.charts import new_chart, save_chart
from bench.report.command import run_benchmark


def run_learning(
    full: bool = False, seed: int = 1, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command. Exit code 1 when a target was missed."""
    missed: list[str] = []

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        from sim.learning_report import run_report

        sizes = (32, 64, 128, 256) if full else (32,)
        report = run_report(sizes=sizes, seed=seed, progress=progress)
        missed.extend(row["scenario"] for row in report["rows"] if not row.get("met", True))
        return {"v": 1, "bench": "learning", **report, "figures": {}}

    return run_benchmark(measure, show, draw, as_json, chart, output) or int(bool(missed))


def show(document: dict[str, Any]) -> None:
    """A line for each situation."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    title = f"digits by softmax regression, {document['rounds']} rounds; central training: "
    table = Table(box=box.SIMPLE, title=f"{title}{document['central']:.3f}")
    for heading in ("situation", "graph"):
        table.add_column(heading)
    for heading in ("nodes", "mean", "worst", "kB out", "kB in", "apart", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
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
