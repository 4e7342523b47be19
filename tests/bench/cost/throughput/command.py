"""`swarm bench throughput`: measure, print, draw."""

from __future__ import annotations

from bench.cost.throughput.measure import ThroughputPlan, measure_throughput
from bench.cost.throughput.tables import draw, show
from bench.report.command import run_benchmark


def run_throughput(
    plan: ThroughputPlan, as_json: bool = False, chart: str = "", output: str = ""
) -> int:
    """The command; returns the exit code. chart, output: files, not written when empty."""
    return run_benchmark(
        lambda progress: measure_throughput(plan, progress), show, draw, as_json, chart, output
    )
