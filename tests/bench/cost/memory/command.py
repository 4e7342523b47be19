"""`swarm bench memory`: measure, print."""

from __future__ import annotations

from bench.cost.memory.measure import MemoryPlan, measure_memory
from bench.cost.memory.tables import show
from bench.report.command import run_benchmark


def run_memory(plan: MemoryPlan, as_json: bool = False, output: str = "") -> int:
    """The command; returns the exit code. output: a JSON file, '' for none."""
    return run_benchmark(
        lambda progress: measure_memory(plan, progress), show, as_json=as_json, output=output
    )
