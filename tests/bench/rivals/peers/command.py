"""`swarm bench peers`: which contenders take part, and their result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report.charts import new_chart, save_chart
from bench.report.command import run_benchmark
from bench.report.figure import Figure
from bench.rivals.catalogue import (
    CONTENDERS,
    FLOOR,
    MESH,
    MESH_BY_UP,
    MESH_BY_WIRE,
    contender_class,
)
from bench.rivals.contract import missing_packages
from bench.rivals.peers.environment import EnvironmentFailed, default_directory, ensure_env
from bench.rivals.peers.networks import KINDS
from bench.rivals.peers.runner import Entrant, run_peers
from bench.rivals.peers.summary import table
from nodes.console import out

OURS = {
    "swarm_up": MESH_BY_UP["durable"],
    "swarm_up_fast": MESH_BY_UP["fast"],
    "swarm": MESH["durable"],
    "swarm_fast": MESH["fast"],
    "swarm_wire": MESH_BY_WIRE["durable"],
    "swarm_fast_wire": MESH_BY_WIRE["fast"],
}
"""The mesh's own names as contenders."""


def entrants(names: Sequence[str], environment: str) -> list[Entrant]:
    """The named contenders (all when `names` is empty), each with the interpreter that runs it.

    The mesh runs in this environment, and so does a contender whose packages are installed here.
    The others run in an environment of their own, which is made if one of them needs it. Raises
    `KeyError` for an unknown name, `EnvironmentFailed`.
    """
    chosen = list(names) or [*OURS, *CONTENDERS]
    known = {*OURS, *CONTENDERS}
    if unknown := [name for name in chosen if name not in known]:
        raise KeyError(f"no contender {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    own = Path(sys.executable)
    foreign = {
        name
        for name in chosen
        if name not in OURS and missing_packages(contender_class(name).packages)
    }
    python = own
    if foreign:
        python = ensure_env(Path(environment) if environment else default_directory())
    return [
        Entrant(name, OURS.get(name, name), python if name in foreign else own) for name in chosen
    ]


def run_peers_command(
    only: Sequence[str],
    rounds: int,
    kinds: Sequence[str],
    environment: str = "",
    as_json: bool = False,
    chart: str = "",
    output: str = "",
) -> int:
    """The command; returns the exit code. The first run installs some gigabytes of packages."""

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise ValueError(f"no workload {', '.join(unknown)}; known: {', '.join(KINDS)}")
        progress("preparing the peers' environment …")
        try:
            taking_part = entrants(only, environment)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        except EnvironmentFailed as error:
            raise RuntimeError(str(error)) from error

        def on_row(row: dict[str, Any]) -> None:
            progress(f"{row['workload']}, round {row['round']}: {row['contender']} done")

        progress("measuring …")
        chosen = [kind for kind in KINDS if kind in kinds]
        result = run_peers(taking_part, kinds=chosen, rounds=rounds, on_row=on_row)
        return {**result, "bench": "peers", "figures": figures_of(result)}

    def show(document: dict[str, Any]) -> None:
        for kind in document["workloads"]:
            out.print(table(document, kind))

    return run_benchmark(measure, show, draw, as_json, chart, output)


def figures_of(result: dict[str, Any]) -> dict[str, Any]:
    """The figures that `swarm bench compare` reads: each contender's p50, and the ratio of the
    mesh's p50 to that of the raw JetStream chain of the same round."""
    figures: dict[str, Figure] = {}
    rows = {
        (row["workload"], row["contender"], row["round"]): row["p50_ms"]
        for row in result["rows"]
        if row["status"] == "ok"
    }
    for kind, name in dict.fromkeys((kind, name) for kind, name, _ in rows):
        own = {number: p50 for (k, n, number), p50 in rows.items() if (k, n) == (kind, name)}
        figures[f"{kind}/{name}/p50_ms"] = Figure.of(own.values(), "ms")
        floor = {n: rows.get((kind, "nats_jetstream", n)) for n in own}
        ratios = [p50 / base for n, p50 in own.items() if (base := floor[n])]
        if name in OURS and ratios:
            key = f"{kind}/{name}/p50_over_nats_jetstream"
            figures[key] = Figure.of(ratios, "x", floor=True)
    return {name: figure.as_doc() for name, figure in figures.items()}


def draw(document: dict[str, Any], path: Path) -> None:
    """Overhead per hop of every contender, one group of bars per workload."""
    rows = [e for e in document["summary"] if e["status"] == "ok" and e["contender"] != FLOOR]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    figure, plot = new_chart("overhead per hop (p50)", "", "milliseconds")
    kinds = list(document["workloads"])
    width = 0.8 / max(1, len(kinds))
    for index, kind in enumerate(kinds):
        values = {r["contender"]: r["per_hop_ms"] or 0.0 for r in rows if r["workload"] == kind}
        places = [place + index * width for place in range(len(names))]
        plot.bar(places, [values.get(name, 0.0) for name in names], width, label=kind)
    plot.set_xticks(list(range(len(names))), names, rotation=40, ha="right")
    plot.set_yscale("log")
    save_chart(figure, plot, path)
