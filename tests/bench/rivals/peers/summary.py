"""From rows to a result: medians over the rounds, the overhead of a hop, a table to read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.machine import machine
from bench.rivals.catalogue import FLOOR
from bench.rivals.peers.measure import Row
from bench.rivals.workload import Workload

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
        "v": 1,
        "machine": machine(),
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
