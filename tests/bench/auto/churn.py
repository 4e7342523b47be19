"""`swarm bench churn`: plans of a simulated fleet that changes all the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.auto import plan_churn

from bench.report.frame import Benchmark, Progress
from nodes.console import out
from swarm.auto.proposing import MOVE_EVERY


@dataclass(frozen=True)
class ChurnPlan:
    """devices: of role auto. minutes: of virtual time. pace: times the usual churn. seed: of
    everything that is drawn."""

    devices: int = 40
    minutes: float = 20.0
    pace: float = 1.0
    seed: int = 1


MOST_CORE = 5.0  # percent, of the device that looks for all
FILLED_WITHIN, APART_FOR = 15.0, 12.0  # seconds


def simulate_churn(plan: ChurnPlan, progress: Progress) -> dict[str, Any]:
    """The report of one fleet."""
    churn = plan_churn.Churn(plan.devices, plan.seed, plan.pace)
    return {**plan_churn.run_report(churn, plan.minutes, progress), "figures": {}}


def show_churn(document: dict[str, Any]) -> None:
    """A line for each figure."""
    for name, value in document.items():
        out.print(f"{name}: {value}", markup=False, highlight=False)


def churn_misses(document: dict[str, Any]) -> list[str]:
    """Sentences of what must not be."""
    reasons = []
    if document["least_between_gains_s"] < MOVE_EVERY:
        reasons.append(f"a plan was changed for a gain after {document['least_between_gains_s']} s")
    if document["to_and_fro"]:
        reasons.append(f"{document['to_and_fro']} nodes went to and fro")
    if document["not_filled_again"] or document["filled_again_s"].get("longest", 0) > FILLED_WITHIN:
        reasons.append(f"a slot had no node for more than {FILLED_WITHIN:g} s behind a death")
    if document["plans_apart_s"].get("longest", 0) > APART_FOR:
        reasons.append(f"nodes knew different plans for more than {APART_FOR:g} s")
    if document["core_percent_first"] > MOST_CORE:
        reasons.append(f"decisions take {document['core_percent_first']} % of a core")
    return reasons


CHURN = Benchmark("churn", simulate_churn, show_churn, misses=churn_misses)
