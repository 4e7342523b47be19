"""`swarm bench links`: measure, print."""

from __future__ import annotations

from bench.fleets.links.measure import LinksPlan, measure_links
from bench.fleets.links.tables import show
from bench.report.command import run_benchmark


def run_links(plan: LinksPlan, as_json: bool = False, output: str = "") -> int:
    """The command; returns the exit code. output: a JSON file, '' for none."""
    return run_benchmark(
        lambda progress: measure_links(plan, progress), show, as_json=as_json, output=output
    )
