"""`swarm bench peers`: which contenders take part, and their result."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.charts import new_chart, save_chart
from bench.report.figure import Figure
from bench.report.frame import Benchmark, Progress
from bench.rivals.catalogue import (
    CONTENDERS,
    FLOOR,
    MESH,
    MESH_BY_UP,
    MESH_BY_WIRE,
    contender_class,
)
from bench.rivals.contract import missing_packages
from bench.rivals.environment import default_directory, ensure_env
from bench.rivals.networks import KINDS
from bench.rivals.peers_client import Row
from bench.rivals.peers_runner import Entrant, run_peers
from bench.rivals.workload import Workload
from nodes.console import out

MEDIAN_KEYS = (
    "p50_ms",
    "p99_ms",
    "requests_per_s",
    "cpu_ms_per_request",
    "rss_mb",
    "pss_mb",
    "processes",
    "ready_s",
)
"""Keys of a row whose median over the rounds the summary holds."""


def document(rows: Sequence[Row], workloads: Mapping[str, Workload], rounds: int) -> dict[str, Any]:
    """The JSON document: machine, workloads, every row, and the summary of each contender."""
    return {
        "rounds": rounds,
        "workloads": {
            kind: {
                "stages": workload.stages,
                "feature_bytes": workload.feature_bytes,
                "in_flight": workload.in_flight,
            }
            for kind, workload in workloads.items()
        },
        "rows": list(rows),
        "summary": summarise(rows, {kind: w.stages for kind, w in workloads.items()}),
    }


def summarise(rows: Sequence[Row], stages: Mapping[str, int]) -> list[dict[str, Any]]:
    """One entry for each contender and workload, medians over its rounds.

    ``per_hop_ms = (p50 of the chain - p50 of the same stages in one process) / stages``, both of
    the same round. One failed round makes the contender ``failed``.
    """
    floors = {
        (row["workload"], row["round"]): row["p50_ms"]
        for row in rows
        if row["contender"] == FLOOR and row["status"] == "ok"
    }
    summary = []
    for kind, name in dict.fromkeys((row["workload"], row["contender"]) for row in rows):
        own = [row for row in rows if (row["workload"], row["contender"]) == (kind, name)]
        entry: dict[str, Any] = {"workload": kind, "contender": name, "rounds": len(own)}
        bad = [row for row in own if row["status"] != "ok"]
        if bad:
            summary.append({**entry, "status": bad[0]["status"], "reason": bad[0]["reason"]})
            continue
        hops = [
            (row["p50_ms"] - floors[kind, row["round"]]) / stages[kind]
            for row in own
            if (kind, row["round"]) in floors
        ]
        entry |= {"status": "ok", "verified": sum(row["verified"] for row in own)}
        entry["in_flight"] = own[0]["in_flight"]
        entry["per_hop_ms"] = statistics.median(hops) if hops else None
        for key in MEDIAN_KEYS:
            values = [row[key] for row in own if row[key] is not None]
            entry[key] = statistics.median(values) if values else None
        entry["p99_over_p50"] = statistics.median(row["p99_ms"] / row["p50_ms"] for row in own)
        summary.append(entry)
    return summary


def table(result: Mapping[str, Any], kind: str) -> Any:
    """A ``rich`` table of one workload, the cheapest hop first, the absent ones last."""
    from rich.table import Table

    workload = result["workloads"][kind]
    sizes = " and ".join(f"{size / 1024:.0f} KiB" for size in workload["feature_bytes"])
    drawn = Table(title=f"{kind}: {workload['stages']} stages, features of {sizes}")
    drawn.add_column("contender")
    load = f"req/s, {workload['in_flight']} in flight"
    for heading in ("per hop ms", "p50 ms", "p99/p50", load, "CPU ms/req", "RSS MB", "outputs"):
        drawn.add_column(heading, justify="right")
    entries = [entry for entry in result["summary"] if entry["workload"] == kind]
    for entry in sorted(entries, key=_rank):
        if entry["status"] != "ok":
            drawn.add_row(entry["contender"], f"{entry['status']}: {entry['reason']}"[:160])
            continue
        drawn.add_row(
            entry["contender"],
            _number(entry["per_hop_ms"], 2),
            _number(entry["p50_ms"], 2),
            _number(entry["p99_over_p50"], 1),
            _number(entry["requests_per_s"], 0 if entry["requests_per_s"] > 100 else 1),
            _number(entry["cpu_ms_per_request"], 2),
            _number(entry["rss_mb"], 0),
            f"{entry['verified']} ok",
        )
    return drawn


def _rank(entry: Mapping[str, Any]) -> tuple[bool, float]:
    return entry["status"] != "ok", entry.get("p50_ms") or 0.0


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


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


@dataclass(frozen=True)
class PeersPlan:
    """only: names of contenders; all when empty. kinds: of `KINDS`. environment: a folder for the
    foreign systems, in the user's cache when empty."""

    only: Sequence[str] = ()
    rounds: int = 3
    kinds: Sequence[str] = KINDS
    environment: str = ""


def measure_peers(plan: PeersPlan, progress: Progress) -> dict[str, Any]:
    """The document. The first run installs some gigabytes of packages."""
    if unknown := [kind for kind in plan.kinds if kind not in KINDS]:
        raise ValueError(f"no workload {', '.join(unknown)}; known: {', '.join(KINDS)}")
    progress("preparing the peers' environment …")
    try:
        taking_part = entrants(plan.only, plan.environment)
    except KeyError as error:
        raise ValueError(error.args[0]) from None

    def on_row(row: dict[str, Any]) -> None:
        progress(f"{row['workload']}, round {row['round']}: {row['contender']} done")

    progress("measuring …")
    chosen = [kind for kind in KINDS if kind in plan.kinds]
    rows, workloads = run_peers(taking_part, kinds=chosen, rounds=plan.rounds, on_row=on_row)
    return {**document(rows, workloads, plan.rounds), "figures": figures_of(rows)}


def show(document: dict[str, Any]) -> None:
    """A table for each workload."""
    for kind in document["workloads"]:
        out.print(table(document, kind))


def figures_of(measured: Sequence[Row]) -> dict[str, Any]:
    """The figures that `swarm bench compare` reads: each contender's p50, and the ratio of the
    mesh's p50 to that of the raw JetStream chain of the same round."""
    figures: dict[str, Figure] = {}
    rows = {
        (row["workload"], row["contender"], row["round"]): row["p50_ms"]
        for row in measured
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


PEERS = Benchmark("peers", measure_peers, show, draw)
