"""`swarm bench regression`, the gate of CI: the mesh's hop over raw JetStream's hop, by turns.

The mesh is the one of a user, `swarm up` and `swarm.connect`, with features of 4 KiB; beside it
runs the raw nats-py chain through JetStream. Both are up at once and take short turns, so a slow
machine slows both.

A busy machine delays most requests of a chain whose every process waits for a core, and the mesh's
more than the raw chain's. So an attempt takes the fastest twentieth of the requests, those that
nothing disturbed: they say what the code costs. A cost that only some requests have is not seen
here; `swarm bench hop` measures medians and tails.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cost.hop import STAGES, chain_workload
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.rivals.catalogue import FLOOR as IN_PROCESS
from bench.rivals.catalogue import MESH_BY_UP
from bench.rivals.side_by_side import checked_latencies, side_by_side
from nodes.console import out

FEATURE_BYTES = 4096
"""Small, so that the gate measures the hop and not the copying."""
FLOOR = "nats_jetstream"
OURS = "up"
CONTENDERS = {OURS: MESH_BY_UP["durable"], FLOOR: FLOOR, IN_PROCESS: IN_PROCESS}
UNDISTURBED = 0.05
"""The share of the requests that an attempt looks at."""
MOST_RATIO = 1.15
"""The most that the best attempt's ratio may be.

Source: ten runs of this gate on two cores that other jobs kept busy (load average 18 to 20). The
best of three attempts was 0.53 to 0.92; single ones went up to 1.37, ratios of medians up to
4.0. With 0.5 ms more a hop the same runs give 1.39 and more. The ratio
of a machine that the processes have to themselves is about a half (`tests/bench/README.md`).
"""
ATTEMPTS = 3
TURNS = 20
"""Of each contender in one attempt."""
REQUESTS = 25
"""In one turn: a turn is shorter than the moments in which the machine is busy."""
WARMUP = 50


@dataclass(frozen=True, slots=True)
class Attempt:
    """What undisturbed requests take: through the mesh, through the floor, and in one process.

    In milliseconds from end to end, over `STAGES` hops. p50_ratio: the ratio of medians, told
    beside the verdict and not judged.
    """

    ours_ms: float
    floor_ms: float
    alone_ms: float
    p50_ratio: float = 0.0

    @property
    def ratio(self) -> float:
        """What the mesh adds to the compute of a request, over what the floor adds.

        Raises `RuntimeError` when the floor took no longer than one process: then nothing was
        measured.
        """
        return _ratio(self.ours_ms, self.floor_ms, self.alone_ms)

    @classmethod
    def of(cls, latencies: dict[str, list[float]]) -> Attempt:
        """From each contender's latencies in seconds."""

        def each(share: float) -> tuple[float, float, float]:
            ours, floor, alone = (
                1e3 * percentile(latencies[name], share) for name in (OURS, FLOOR, IN_PROCESS)
            )
            return ours, floor, alone

        return cls(*each(UNDISTURBED), p50_ratio=_ratio(*each(0.5)))

    def as_doc(self) -> dict[str, float]:
        return {
            "ours_ms": round(self.ours_ms, 3),
            "floor_ms": round(self.floor_ms, 3),
            "alone_ms": round(self.alone_ms, 3),
            "ratio": round(self.ratio, 3),
            "p50_ratio": round(self.p50_ratio, 3),
        }


def _ratio(ours: float, floor: float, alone: float) -> float:
    if floor <= alone:
        raise RuntimeError(f"{FLOOR} took no longer than one process: {floor} of {alone} ms")
    return (ours - alone) / (floor - alone)


def misses(attempts: Sequence[Attempt], limit: float = MOST_RATIO) -> list[str]:
    """What the gate complains about: nothing, unless the best attempt's ratio is above the limit.

    The best one counts: noise only ever makes an attempt worse, while a regression makes every
    attempt worse.
    """
    return excess(min(attempt.ratio for attempt in attempts), limit)


def excess(ratio: float, limit: float) -> list[str]:
    """The complaint about a ratio, unless it is within the limit."""
    if ratio <= limit:
        return []
    return [f"a hop takes {ratio:.2f} times raw JetStream's, limit {limit:g}"]


@dataclass(frozen=True)
class RegressionPlan:
    """limit: the most of the ratio. attempts: end with the first one within the limit."""

    limit: float = MOST_RATIO
    attempts: int = ATTEMPTS
    turns: int = TURNS


def check_regression(plan: RegressionPlan, progress: Progress) -> dict[str, Any]:
    """The gate's document.

    Raises `RuntimeError` when a contender cannot run here, `WrongAnswer`, or the error of a start.
    """
    started = time.monotonic()
    made: list[Attempt] = []
    with tempfile.TemporaryDirectory(prefix="regression-") as root:
        workload = chain_workload(Path(root) / "chain", FEATURE_BYTES)
        with side_by_side(workload, CONTENDERS) as (running, absent):
            if absent:
                raise RuntimeError(f"cannot be measured here: {absent}")
            for contender in running.values():
                checked_latencies(contender, workload, WARMUP)
            while not made or (misses(made, plan.limit) and len(made) < plan.attempts):
                progress(f"by turns with raw JetStream: attempt {len(made) + 1} of {plan.attempts}")
                latencies: dict[str, list[float]] = {name: [] for name in running}
                for _, name in by_turns(plan.turns, list(running)):
                    latencies[name] += checked_latencies(running[name], workload, REQUESTS)
                made.append(Attempt.of(latencies))
    return {
        "bytes": FEATURE_BYTES,
        "hops": STAGES,
        "floor": FLOOR,
        "limit": plan.limit,
        "attempts": [attempt.as_doc() for attempt in made],
        "best": round(min(attempt.ratio for attempt in made), 3),
        "seconds": round(time.monotonic() - started, 1),
    }


def show(document: dict[str, Any]) -> None:
    """One line: the verdict, the best attempt, and all attempts."""
    verdict = "[bold red]REGRESSION[/]" if document["missed"] else "[green]ok[/]"
    rows = document["attempts"]
    out.print(
        f"{verdict}: an undisturbed hop of {FEATURE_BYTES} bytes takes {document['best']:.2f} "
        f"times raw JetStream's (limit {document['limit']:g}); attempts: "
        + ", ".join(f"{row['ratio']:.2f} (medians {row['p50_ratio']:.2f})" for row in rows)
        + f"; {document['seconds']:.0f} s"
    )


REGRESSION = Benchmark(
    "regression",
    check_regression,
    show,
    misses=lambda document: excess(document["best"], document["limit"]),
)
