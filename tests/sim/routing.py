"""`swarm bench routing`: all routing policies in all scenarios, simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report.charts import new_chart, save_chart
from bench.report.command import run_benchmark


def run_routing(
    full: bool = False, seed: int = 1, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command; returns the exit code."""

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        from sim.routing_report import run_report

        progress("simulating: some minutes …" if full else "simulating: some seconds …")
        return {"v": 1, "bench": "routing", **run_report(not full, seed=seed), "figures": {}}

    return run_benchmark(measure, show, draw, as_json, chart, output)


def show(document: dict[str, Any]) -> None:
    """The report's own Markdown table, unchanged: the table is wide, and made to be pasted."""
    from nodes.console import out
    from sim.routing_report import render_markdown

    out.print(render_markdown(document), markup=False, highlight=False, soft_wrap=True)


def draw(document: dict[str, Any], path: Path) -> None:
    """p99 of each policy over the p99 of the clairvoyant one: mean and worst of the scenarios."""
    rows = document["summary"]
    figure, plot = new_chart("p99 over the clairvoyant's", "", "times")
    places = list(range(len(rows)))
    plot.bar(places, [row["p99_worst"] for row in rows], color="lightgrey", label="worst scenario")
    plot.bar(places, [row["p99_mean"] for row in rows], label="geometric mean")
    plot.set_xticks(places, [row["policy"] for row in rows], rotation=40, ha="right")
    plot.set_yscale("log")
    save_chart(figure, plot, path)
