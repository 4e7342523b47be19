"""`swarm bench rollout`: play, print, judge."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from bench.fleets.rollout.play import RolloutPlan, play
from bench.report.command import run_judged_benchmark
from rich.table import Table

from nodes.console import out
from nodes.logs import LogForm, set_up_logging

MOST_RATIO = 2.0  # p99 of a phase, in the quiet p99
BACK_WITHIN = 2.0  # seconds
SHOWN = ("requests", "lost", "wrong", "mixed", "p99_ms", "p99_ratio")


def run_rollout(plan: RolloutPlan, as_json: bool, output: str) -> int:
    """The command; exit code 1 when a target is missed."""
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(logging.ERROR)
    return run_judged_benchmark(
        lambda progress: asyncio.run(play(plan, progress)), misses, show, as_json, output
    )


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that a document misses, as sentences."""
    found = []
    for name, phase in document["phases"].items():
        if phase["lost"] or phase["wrong"] or phase["mixed"]:
            found.append(
                f"{name}: {phase['lost']} requests lost, {phase['wrong']} answers wrong, "
                f"{phase['mixed']} of two versions"
            )
        if phase["p99_ratio"] > MOST_RATIO:
            found.append(f"{name}: p99 is {phase['p99_ratio']} times the quiet one ({MOST_RATIO})")
        if phase.get("back_within_s", 0.0) > BACK_WITHIN:
            found.append(f"{name}: back after {phase['back_within_s']} s ({BACK_WITHIN})")
    return found


def show(document: dict[str, Any]) -> None:
    """The figures, for people."""
    shown = Table("phase", *(key.replace("_", " ") for key in SHOWN), "besides")
    for name, phase in document["phases"].items():
        besides = [
            f"{key.replace('_', ' ')} {phase[key]}"
            for key in ("killed", "seconds", "back_within_s", "compared")
            if key in phase
        ]
        shown.add_row(name, *(str(phase[key]) for key in SHOWN), ", ".join(besides))
    out.print(shown)
