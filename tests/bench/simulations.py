"""`swarm bench gossip`, `routing`: the simulations' reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import gossip_report, routing_report

from bench.report.charts import new_chart, save_chart
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out


@dataclass(frozen=True)
class SimulationPlan:
    """full: the long run. seed: of everything that is drawn."""

    full: bool = False
    seed: int = 1


def missed_rows(document: dict[str, Any]) -> list[str]:
    """The scenarios of a report that miss their target."""
    return [str(row["scenario"]) for row in document["rows"] if not row.get("met", True)]


NOT_MEASURED = {"scenario", "nodes", "met", "target"}
"""Keys of a report's row that are no measurement."""


def simulate_gossip(plan: SimulationPlan, progress: Progress) -> dict[str, Any]:
    """The report of all scenarios."""
    progress("simulating: some minutes …" if plan.full else "simulating: about 10 s …")
    return {**gossip_report.run_report(quick=not plan.full, seed=plan.seed), "figures": {}}


def show_gossip(document: dict[str, Any]) -> None:
    """A line for each scenario: what was measured, and whether the target was met."""
    title = f"rounds of {document['interval_s'] * 1e3:g} ms"
    table = new_table(title, "scenario", "nodes", "measured", "target", left=4)
    table.columns[2].no_wrap = False
    for row in document["rows"]:
        measured = ", ".join(f"{k} {v}" for k, v in row.items() if k not in NOT_MEASURED)
        target = "" if "met" not in row else "[green]met[/]" if row["met"] else "[red]missed[/]"
        table.add_row(row["scenario"], str(row["nodes"]), measured, target)
    out.print(table)


def draw_gossip(document: dict[str, Any], path: Path) -> None:
    """Rounds until all nodes know of a change, over the number of nodes."""
    rows = [row for row in document["rows"] if row["scenario"] == "spread"]
    figure, plot = new_chart("spread of a change", "nodes", "rounds")
    for key in ("rounds_p50", "rounds_max"):
        plot.plot([row["nodes"] for row in rows], [row[key] for row in rows], "-o", label=key)
    plot.set_xscale("log")
    plot.set_ylim(bottom=0)
    save_chart(figure, plot, path)


GOSSIP = Benchmark("gossip", simulate_gossip, show_gossip, draw_gossip, missed_rows)


def simulate_routing(plan: SimulationPlan, progress: Progress) -> dict[str, Any]:
    """The report of all policies in all scenarios."""
    progress("simulating: some minutes …" if plan.full else "simulating: some seconds …")
    return {**routing_report.run_report(not plan.full, seed=plan.seed), "figures": {}}


def show_routing(document: dict[str, Any]) -> None:
    """The report's own Markdown table, unchanged: the table is wide, and made to be pasted."""
    out.print(
        routing_report.render_markdown(document), markup=False, highlight=False, soft_wrap=True
    )


def draw_routing(document: dict[str, Any], path: Path) -> None:
    """p99 of each policy over the p99 of the clairvoyant one: mean and worst of the scenarios."""
    rows = document["summary"]
    figure, plot = new_chart("p99 over the clairvoyant's", "", "times")
    places = list(range(len(rows)))
    plot.bar(places, [row["p99_worst"] for row in rows], color="lightgrey", label="worst scenario")
    plot.bar(places, [row["p99_mean"] for row in rows], label="geometric mean")
    plot.set_xticks(places, [row["policy"] for row in rows], rotation=40, ha="right")
    plot.set_yscale("log")
    save_chart(figure, plot, path)


ROUTING = Benchmark("routing", simulate_routing, show_routing, draw_routing)
