"""A latency check for CI: the mesh's hop over raw JetStream's hop, in one run.

Both chains run side by side, so a slow or busy machine slows both. The best of the rounds counts:
noise only ever makes a round worse, a regression makes all of them worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nodes.bench.hop import OURS, HopPlan, measure_hop

SIZE = 4096
"""Bytes of features: small, so that it is the hop that is measured and not the copying."""
FLOOR = "nats_jetstream"
LIMIT = 2.0
ROUNDS = 3
TIME_LIMIT = 30.0
"""Seconds that the check is made to fit in; further rounds are not begun after half of it."""


def check_regression(
    limit: float = LIMIT, rounds: int = ROUNDS, requests: int = 150
) -> dict[str, Any]:
    """`ok` unless the best round's ratio of p50 hop overheads is above `limit`.

    When all rounds fail, one more set is measured before it is called a regression, if there is
    time: a machine can be unlucky for three seconds.
    """
    started = time.monotonic()
    ratios: list[float] = []
    while True:
        document = measure_hop(HopPlan([SIZE], requests, rounds, floors=(FLOOR,)))
        ratios += ratios_of(document)
        best = min(ratios)
        if best <= limit or time.monotonic() - started > TIME_LIMIT / 2:
            break
    return {
        "v": 1,
        "bench": "regression",
        "machine": document["machine"],
        "bytes": SIZE,
        "floor": FLOOR,
        "limit": limit,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "best": round(best, 3),
        "ok": best <= limit,
        "seconds": round(time.monotonic() - started, 1),
    }


def ratios_of(document: dict[str, Any]) -> list[float]:
    """Of each round of a hop document: the mesh's overhead per hop over the floor's, at p50, by the
    slower of its two ways (directly on one host, and through the server).

    Raises `RuntimeError` when a floor costs nothing: then nothing was measured.
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


def run_regression(limit: float = LIMIT, rounds: int = ROUNDS, as_json: bool = False) -> int:
    """The command; exit code 1 for a regression."""
    from nodes.bench.present import present
    from nodes.cli.console import out

    seen: list[bool] = []

    def measure(progress: Callable[[str], None]) -> dict[str, Any]:
        progress("mesh and raw JetStream, side by side …")
        document = check_regression(limit, rounds)
        seen.append(bool(document["ok"]))
        return document

    def show(document: dict[str, Any]) -> None:
        colour = "green" if document["ok"] else "bold red"
        out.print(
            f"[{colour}]{'ok' if document['ok'] else 'REGRESSION'}[/]: a hop of {SIZE} bytes takes "
            f"{document['best']:.2f} times raw JetStream's (limit {limit:g}); rounds: "
            + ", ".join(f"{ratio:.2f}" for ratio in document["ratios"])
            + f"; {document['seconds']:.0f} s"
        )

    code = present(measure, show, None, as_json)
    return code or int(not seen[-1])
