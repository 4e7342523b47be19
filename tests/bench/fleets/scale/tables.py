"""The result of `swarm bench scale` as tables, sentences and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.fleets.scale.sweeps import SWEEPS
from bench.report.charts import new_chart, save_chart

COLUMNS = {
    "requests_per_s": "req/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99",
    "server_cpu_ms_per_request": "server CPU",
    "messages_per_request": "msgs",
    "bytes_per_request": "bytes",
    "idle_messages_per_s": "idle msg/s",
    "server_rss_mb": "server MB",
    "node_rss_mb": "node MB",
}


def show(document: dict[str, Any]) -> None:
    """A table for each sweep, then the sentences of its laws."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    figures = document["figures"]
    for sweep in SWEEPS:
        points = [p for p in document["points"] if p["sweep"] == sweep]
        if not points:
            continue
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
        for heading in (sweep, *COLUMNS.values()):
            table.add_column(heading, justify="right", no_wrap=True)
        for point in points:
            key = f"{point['value']} {sweep}"
            cells = (f"{figures[f'{key}/{name}']['value']:.3g}" for name in COLUMNS)
            table.add_row(str(point["value"]), *cells)
        out.print(table)
        for law in document["laws"]:
            if law["sweep"] == sweep:
                out.print(f"  {law['words']}", highlight=False)
    base = document["base"]
    out.print(
        f"\nHeld while another quantity grows: {base['nodes']} nodes, {base['models']} model, "
        f"{base['agents']} agents. CPU in ms for a request; messages and bytes as the server "
        "counts them, from and to clients, above its idle rate."
    )


def draw(document: dict[str, Any], path: Path) -> None:
    """Latency p50 and the server's CPU of each sweep, relative to its first point."""
    figures = document["figures"]
    figure, plot = new_chart(
        "growth, relative to the smallest point", "how many", "times the first"
    )
    for sweep in SWEEPS:
        values = [p["value"] for p in document["points"] if p["sweep"] == sweep]
        for name, style in (("p50_ms", "-o"), ("server_cpu_ms_per_request", "--")):
            points = [figures[f"{value} {sweep}/{name}"]["value"] for value in values]
            if points and points[0] > 0:
                label = f"{COLUMNS[name]} over {sweep}"
                plot.plot(values, [point / points[0] for point in points], style, label=label)
    plot.set_xscale("log")
    plot.set_yscale("log")
    save_chart(figure, plot, path)
