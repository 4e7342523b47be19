"""`swarm bench scale`: measure, print, draw."""

from __future__ import annotations

from nodes.bench.report.command import run_benchmark
from nodes.bench.scale.sweeps import ScalePlan, measure_scale
from nodes.bench.scale.tables import draw, show


def run_scale(plan: ScalePlan, as_json: bool = False, chart: str = "", output: str = "") -> int:
    """The command; returns the exit code. chart, output: files, not written when empty."""
    return run_benchmark(
        lambda progress: measure_scale(plan, progress), show, draw, as_json, chart, output
    )
