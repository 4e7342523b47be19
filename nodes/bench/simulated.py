"""`swarm bench gossip` and `swarm bench routing`: the simulations' reports, printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodes.bench.charts import axes, save
from nodes.bench.present import present

_TITLES = {"scenario", "nodes", "met", "target"}


def run_gossip(
    full: bool = False, seed: int = 1, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command. Exit code 1 when a target of the gossip was missed."""
    missed: list[str] = []

    def measure(progress: Any) -> dict[str, Any]:
        from swarm.gossip.report import run_report

        progress("simulating: some minutes …" if full else "simulating: about 10 s …")
        report = run_report(quick=not full, seed=seed)
        missed.extend(f"{row['scenario']} of {row['nodes']}" for row in _missed(report))
        return {"v": 1, "bench": "gossip", **report, "figures": {}}

    return present(measure, show_gossip, draw_gossip, as_json, chart, output) or int(bool(missed))


def _missed(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if not row.get("met", True)]


def show_gossip(document: dict[str, Any]) -> None:
    """A line for each scenario: what was measured, and whether the target was met."""
    from rich import box
    from rich.table import Table

    from nodes.cli.console import out

    table = Table(box=box.SIMPLE, title=f"rounds of {document['interval_s'] * 1e3:g} ms")
    for heading in ("scenario", "nodes", "measured", "target"):
        table.add_column(heading)
    for row in document["rows"]:
        measured = ", ".join(f"{k} {v}" for k, v in row.items() if k not in _TITLES)
        target = "" if "met" not in row else "[green]met[/]" if row["met"] else "[red]missed[/]"
        table.add_row(row["scenario"], str(row["nodes"]), measured, target)
    out.print(table)


def draw_gossip(document: dict[str, Any], path: Path) -> None:
    """Rounds until everybody knows, over the number of nodes."""
    rows = [row for row in document["rows"] if row["scenario"] == "spread"]
    figure, plot = axes("spread of a change", "nodes", "rounds")
    for key in ("rounds_p50", "rounds_max"):
        plot.plot([row["nodes"] for row in rows], [row[key] for row in rows], "-o", label=key)
    plot.set_xscale("log")
    plot.set_ylim(bottom=0)
    save(figure, plot, path)


def run_routing(
    full: bool = False, seed: int = 1, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command."""

    def measure(progress: Any) -> dict[str, Any]:
        from swarm.routing.report import run_report

        progress("simulating: some minutes …" if full else "simulating: some seconds …")
        return {"v": 1, "bench": "routing", **run_report(not full, seed=seed), "figures": {}}

    return present(measure, show_routing, draw_routing, as_json, chart, output)


def show_routing(document: dict[str, Any]) -> None:
    """The report's own Markdown table, as it is: it is wide, and made to be pasted."""
    from nodes.cli.console import out
    from swarm.routing.report import render_markdown

    out.print(render_markdown(document), markup=False, highlight=False, soft_wrap=True)


def draw_routing(document: dict[str, Any], path: Path) -> None:
    """p99 over the reference's, mean and worst over the scenarios, per policy."""
    rows = document["summary"]
    figure, plot = axes("p99 over the clairvoyant's", "", "times")
    places = list(range(len(rows)))
    plot.bar(places, [row["p99_worst"] for row in rows], color="lightgrey", label="worst scenario")
    plot.bar(places, [row["p99_mean"] for row in rows], label="geometric mean")
    plot.set_xticks(places, [row["policy"] for row in rows], rotation=40, ha="right")
    plot.set_yscale("log")
    save(figure, plot, path)
