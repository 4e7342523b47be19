"""The sweeps of `swarm bench scale`: what grows when the mesh does.

Each of the three sweeps varies one quantity: nodes, models (three nodes each) or agents (clients
with a connection each). Every point has a fresh server; the points are measured in turn, round by
round. Growth laws are fitted to the medians and stated in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.fleets.growth_law import fit
from bench.fleets.scale_point import Point, measure_point
from bench.report.charts import new_chart, save_chart
from bench.report.figure import Better, Figure
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out

SWEEPS = ("nodes", "models", "agents")
GROWING_FIGURES: dict[str, tuple[str, Better]] = {
    "requests_per_s": ("1/s", "higher"),
    "p50_ms": ("ms", "lower"),
    "p99_ms": ("ms", "lower"),
    "server_cpu_ms_per_request": ("ms", "lower"),
    "all_cpu_ms_per_request": ("ms", "lower"),
    "messages_per_request": ("", "lower"),
    "bytes_per_request": ("B", "lower"),
    "idle_messages_per_s": ("1/s", "lower"),
    "idle_bytes_per_s": ("B/s", "lower"),
    "idle_server_cpu_percent": ("%", "lower"),
    "server_rss_mb": ("MB", "lower"),
    "node_rss_mb": ("MB", "lower"),
}
"""The figures whose growth is reported: unit, and which direction is better."""

FIGURE_NAMES = {
    "requests_per_s": "throughput",
    "p50_ms": "latency p50",
    "p99_ms": "latency p99",
    "server_cpu_ms_per_request": "the server's CPU for a request",
    "all_cpu_ms_per_request": "all CPU for a request",
    "messages_per_request": "the number of messages for a request",
    "bytes_per_request": "the number of bytes for a request",
    "idle_messages_per_s": "the idle mesh's message rate",
    "idle_bytes_per_s": "the idle mesh's byte rate",
    "idle_server_cpu_percent": "the server's idle CPU",
    "server_rss_mb": "the server's memory",
    "node_rss_mb": "memory per node",
}


@dataclass(frozen=True)
class ScalePlan:
    """nodes, models, agents: the values of each sweep; an empty sweep is left out. base: the point
    whose other quantities are held while one grows."""

    nodes: Sequence[int] = (3, 12, 25, 50, 100)
    models: Sequence[int] = (1, 5, 10, 25, 50)
    agents: Sequence[int] = (1, 10, 100, 300, 1000)
    rounds: int = 1
    base: Point = field(default_factory=Point)

    def points(self) -> list[tuple[str, int, Point]]:
        """Sweep, value and point, in order of measurement."""
        found = []
        for sweep in SWEEPS:
            for value in getattr(self, sweep):
                found.append((sweep, value, replace(self.base, **{sweep: value})))
        return found


async def measure_scale(plan: ScalePlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench scale`. Raises `WrongAnswer`, `RuntimeError`."""
    allow_connections(2 * max([*plan.agents, plan.base.agents]) + 500)
    seen: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(1, plan.rounds + 1):
        for sweep, value, point in plan.points():
            progress(f"round {number}: {value} {sweep} …")
            row = await measure_point(point)
            seen.setdefault((sweep, value), []).append(row)
    figures = {
        f"{value} {sweep}/{key}": Figure.of([row[key] for row in rows], unit, better)
        for (sweep, value), rows in seen.items()
        for key, (unit, better) in GROWING_FIGURES.items()
    }
    return {
        "rounds": plan.rounds,
        "base": asdict(plan.base),
        "points": [
            {"sweep": sweep, "value": value, "rounds": rows}
            for (sweep, value), rows in seen.items()
        ],
        "laws": laws(seen),
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def laws(seen: Mapping[tuple[str, int], Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """How each figure grows with each sweep's quantity, as entries of the document.

    seen: (sweep, value) -> a row of figures for each round. Three nodes come with each model of the
    sweep of models.
    """
    found = []
    for sweep in SWEEPS:
        points = [(value, rows) for (name, value), rows in seen.items() if name == sweep]
        for key in GROWING_FIGURES:
            values = [Figure.of([row[key] for row in rows]).value for _, rows in points]
            law = fit([float(value) for value, _ in points], values)
            if law is not None:
                words = law.words(FIGURE_NAMES[key], sweep)
                found.append({"sweep": sweep, "figure": key, "words": words, **asdict(law)})
    return found


def allow_connections(wanted: int) -> None:
    """Raise the limit of open files to `wanted` for this process and its children, or as far as the
    system allows. The limit is never lowered."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
    figures = document["figures"]
    for sweep in SWEEPS:
        points = [p for p in document["points"] if p["sweep"] == sweep]
        if not points:
            continue
        table = new_table("", sweep, *COLUMNS.values(), left=0)
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


SCALE = Benchmark("scale", measure_scale, show, draw)
