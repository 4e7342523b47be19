"""`swarm bench scale`: measure, print, draw."""

from __future__ import annotations

from bench.fleets.scale import large_tables
from bench.fleets.scale.large_fleet import LargeFleetPlan, measure_large_fleet
from bench.fleets.scale.sweeps import ScalePlan, measure_scale
from bench.fleets.scale.tables import draw, show
from bench.report.command import run_benchmark, run_judged_benchmark


def run_scale(plan: ScalePlan, as_json: bool = False, chart: str = "", output: str = "") -> int:
    """The command; returns the exit code. chart, output: files, not written when empty."""
    return run_benchmark(
        lambda progress: measure_scale(plan, progress), show, draw, as_json, chart, output
    )


def run_large_fleet(plan: LargeFleetPlan, as_json: bool = False, output: str = "") -> int:
    """The command with a fleet that is mostly imitated; returns the exit code."""
    return run_judged_benchmark(
        lambda progress: measure_large_fleet(plan, progress),
        large_tables.misses,
        large_tables.show,
        as_json,
        output,
    )
