"""`swarm bench regression`, a check for CI: the mesh's hop over raw JetStream's hop, in one run.

Both chains run side by side, so a slow or busy machine slows both. The best of the rounds counts:
noise only ever makes a round worse, while a regression makes every round worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nodes.bench.hop.measure import HopPlan, measure_hop
from nodes.bench.report.command import run_benchmark

FEATURE_BYTES = 4096
"""Small, so that the check measures the hop and not the copying."""
FLOOR = "nats_jetstream"
OURS = ("mesh", "mesh_wire")
"""The ways of the mesh that are up in less than a second."""
MOST_RATIO = 2.0
"""The most that the ratio may be."""
ROUNDS = 3
TIME_LIMIT = 30.0
"""Seconds for the whole check; no further set of rounds begins after half of them."""


def check_regression(
    limit: float = MOST_RATIO, rounds: int = ROUNDS, requests: int = 150
) -> dict[str, Any]:
    """The check's document; `ok` unless the best round's ratio of p50 overheads is above `limit`.

    When all rounds are above it, more sets of rounds are measured while there is time, before the
    result is called a regression: a machine can be unlucky for three seconds.
    """
    started = time.monotonic()
    ratios: list[float] = []
    while True:
        document = measure_hop(
            HopPlan([FEATURE_BYTES], requests, rounds, floors=(FLOOR,), ours=OURS)
        )
        ratios += ratios_of(document)
        best = min(ratios)
        if best <= limit or time.monotonic() - started > TIME_LIMIT / 2:
            break
    return {
        "v": 1,
        "bench": "regression",
        "machine": document["machine"],
        "bytes": FEATURE_BYTES,
        "floor": FLOOR,
        "limit": limit,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "best": round(best, 3),
        "ok": best <= limit,
        "seconds": round(time.monotonic() - started, 1),
    }


def ratios_of(document: dict[str, Any]) -> list[float]:
    """One ratio for each round of a hop document: the mesh's overhead at p50 over the floor's.

    The mesh's overhead is that of the slower of `mesh` and `mesh_wire`. Raises `RuntimeError` when
    the floor took no longer than one process: then nothing was measured.
    """
    ratios = []
    for row in document["sizes"][0]["rounds"]:
        compute = row["inprocess"]["p50"]
        floor = row[FLOOR]["p50"] - compute
        if floor <= 0:
            raise RuntimeError(f"{FLOOR} took no longer than one process: {row}")
        slower = max(row[own]["p50"] for own in OURS)
        ratios.append((slower - compute) / floor)
    return ratios


def run_regression(limit: float = MOST_RATIO, rounds: int = ROUNDS, as_json: bool = False) -> int:
    """The command; exit code 1 for a regression."""
    from nodes.console import out

    passed: list[bool] = []

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        progress("mesh and raw JetStream, side by side …")
        document = check_regression(limit, rounds)
        passed.append(bool(document["ok"]))
        return document

    def show(document: dict[str, Any]) -> None:
        verdict = "[green]ok[/]" if document["ok"] else "[bold red]REGRESSION[/]"
        out.print(
            f"{verdict}: a hop of {FEATURE_BYTES} bytes "
            f"takes {document['best']:.2f} times raw JetStream's (limit {limit:g}); rounds: "
            + ", ".join(f"{ratio:.2f}" for ratio in document["ratios"])
            + f"; {document['seconds']:.0f} s"
        )

    code = run_benchmark(measure, show, None, as_json)
    return code or int(not passed[-1])
