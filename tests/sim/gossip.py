"""`swarm bench gossip`: what the gossip achieves, simulated: spread, traffic, crashes, splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report.charts import new_chart, save_chart
from bench.report.command import run_benchmark

NOT_MEASURED = {"scenario", "nodes", "met", "target"}
"""Keys of a report's row that are no measurement."""


def run_gossip(
    full: bool = False, seed: int = 1, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command. Exit code 1 when a target of the gossip was missed."""
    missed: list[str] = []

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        from sim.gossip_report import run_report

        progress("simulating: some minutes …" if full else "simulating: about 10 s …")
        report = run_report(quick=not full, seed=seed)
        missed.extend(row["scenario"] for row in report["rows"] if not row.get("met", True))
        return {"v": 1, "bench": "gossip", **report, "figures": {}}

    return run_benchmark(measure, show, draw, as_json, chart, output) or int(bool(missed))


def show(document: dict[str, Any]) -> None:
    """A line for each scenario: what was measured, and whether the target was met."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    table = Table(box=box.SIMPLE, title=f"rounds of {document['interval_s'] * 1e3:g} ms")
    for heading in ("scenario", "nodes", "measured", "target"):
        table.add_column(heading)
    for row in document["rows"]:
        measured = ", ".join(f"{k} {v}" for k, v in row.items() if k not in NOT_MEASURED)
        target = "" if "met" not in row else "[green]met[/]" if row["met"] else "[red]missed[/]"
        table.add_row(row["scenario"], str(row["nodes"]), measured, target)
    out.print(table)


def draw(document: dict[str, Any], path: Path) -> None:
    """Rounds until all nodes know of a change, over the number of nodes."""
    rows = [row for row in document["rows"] if row["scenario"] == "spread"]
    figure, plot = new_chart("spread of a change", "nodes", "rounds")
    for key in ("rounds_p50", "rounds_max"):
        plot.plot([row["nodes"] for row in rows], [row[key] for row in rows], "-o", label=key)
    plot.set_xscale("log")
    plot.set_ylim(bottom=0)
    save_chart(figure, plot, path)
