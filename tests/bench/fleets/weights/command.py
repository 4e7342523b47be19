"""`swarm bench weights`: measure, print, judge."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.fleets.weights.measure import WeightsPlan, measure_weights
from bench.report.command import run_judged_benchmark
from rich.table import Table

from nodes.console import out

MOST_RATIO = 1.3  # p99 with updates, in p99 without
MOST_HEAD_TAKE_MS = 2.0  # median
MOST_GROWTH = 1.05  # memory after all updates, in that after the first


def run_weights(plan: WeightsPlan, as_json: bool, output: str) -> int:
    """The command; exit code 1 when a target is missed."""
    return run_judged_benchmark(
        lambda progress: asyncio.run(measure_weights(plan, progress)),
        misses,
        show,
        as_json,
        output,
    )


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that a document misses, as sentences."""
    found = []
    for name, case in document["cases"].items():
        if case["lost"] or case["torn"]:
            found.append(f"{name}: {case['lost']} requests lost, {case['torn']} answers torn")
        if case["p99_ratio"] > MOST_RATIO:
            found.append(f"{name}: p99 is {case['p99_ratio']} times the quiet one ({MOST_RATIO})")
        if name == "digits" and case["take_p50_ms"] > MOST_HEAD_TAKE_MS:
            found.append(f"{name}: a head takes {case['take_p50_ms']} ms ({MOST_HEAD_TAKE_MS})")
        memory = list(case["memory_mb"].values())
        if memory[-1] > memory[0] * MOST_GROWTH:
            found.append(f"{name}: memory grew from {memory[0]} to {memory[-1]} MB")
    return found


def show(document: dict[str, Any]) -> None:
    """The figures, for people."""
    shown = Table("figure", *document["cases"], title=f"{document['updates']} weight versions")
    keys = next(iter(document["cases"].values()))
    for key in keys:
        cells = [str(case[key]) for case in document["cases"].values()]
        shown.add_row(key.replace("_", " "), *cells)
    out.print(shown)
