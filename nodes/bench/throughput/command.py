"""`swarm bench throughput`: measure, print, draw."""

from __future__ import annotations

from nodes.bench.report.command import run_benchmark
from nodes.bench.throughput.measure import ThroughputPlan, measure_throughput
from nodes.bench.throughput.tables import draw, show


def run_throughput(
    plan: ThroughputPlan, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command; returns the exit code. chart, output: files, not written when empty."""
    return run_benchmark(
        lambda progress: measure_throughput(plan, progress), show, draw, as_json, chart, output
    )
