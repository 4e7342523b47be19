"""`swarm bench hop`: measure, print, draw."""

from __future__ import annotations

from bench.cost.hop.measure import HopPlan, measure_hop
from bench.cost.hop.tables import draw, show
from bench.cost.hop.trust import measure_trust, show_trust
from bench.report.command import run_benchmark


def run_hop(plan: HopPlan, as_json: bool = False, chart: str = "", output: str = "") -> int:
    """The command; returns the exit code.

    chart: an image file. output: a JSON file for `swarm bench compare`. Empty: not written.
    """
    return run_benchmark(
        lambda progress: measure_hop(plan, progress), show, draw, as_json, chart, output
    )


def run_trust(plan: HopPlan, as_json: bool = False, output: str = "") -> int:
    """`swarm bench hop --trust`; returns the exit code."""
    return run_benchmark(
        lambda progress: measure_trust(plan, progress), show_trust, None, as_json, "", output
    )
