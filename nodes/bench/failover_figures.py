"""From a load's records to figures and verdicts: pure functions of what was recorded.

All times inside are seconds of `time.monotonic()`, all figures milliseconds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.bench.failover_scenarios import Targets

REFUSED = "RESOURCE_EXHAUSTED"  # told at once, so it can be asked elsewhere: not lost, no answer
AFFECTED = 0.050  # seconds; a slower request is counted as affected, as in the notes on lanes


@dataclass(frozen=True)
class Trial:
    """quiet to fault: the usual; fault to end: the window; again: all nodes ready. out: nodes
    that lived and served nothing after it."""

    quiet: float
    fault: float
    end: float
    again: float
    out: int = 0


def percentile(values: Sequence[float], q: float) -> float:
    """The nearest rank, so that the p99 of a few trials is their maximum; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50": round(percentile(values, 0.50), 2),
        "p99": round(percentile(values, 0.99), 2),
        "max": round(max(values, default=0.0), 2),
    }


def usual(requests: Sequence[Mapping[str, Any]], trials: Sequence[Trial]) -> dict[str, float]:
    """Latency in the quiet parts, which no fault and no start of a node disturbs."""
    values = [
        (r["done"] - r["sent"]) * 1e3
        for r in requests
        if r["status"] == "OK"
        and any(t.quiet <= r["sent"] and r["done"] <= t.fault for t in trials)
    ]
    return {
        "p50": round(percentile(values, 0.50), 2),
        "p99": round(percentile(values, 0.99), 2),
        "requests": len(values),
    }


def window_figures(
    requests: Sequence[Mapping[str, Any]], doubles: Sequence[Sequence[float]], trial: Trial
) -> dict[str, Any]:
    """What one fault cost those who asked around it.

    A window holds the requests that were unanswered at the fault or asked before its end;
    the longest gap is between two answers that follow each other, from the last one before
    the fault to the window's end.
    """
    inside = [r for r in requests if r["done"] > trial.fault and r["sent"] <= trial.end]
    good = [r for r in inside if r["status"] == "OK"]
    latencies = [(r["done"] - r["sent"]) * 1e3 for r in good]
    answers = sorted(r["done"] for r in requests if r["status"] == "OK")
    before = [t for t in answers if t <= trial.fault][-1:]
    # Silence up to the end of the window counts.
    times = [
        *(before or [trial.fault]),
        *(t for t in answers if trial.fault < t <= trial.end),
        trial.end,
    ]
    gaps = [(b - a) * 1e3 for a, b in itertools.pairwise(times)]
    after = [
        (r["done"] - r["sent"]) * 1e3
        for r in requests
        if r["status"] == "OK" and trial.end < r["sent"] <= trial.again + 0.4
    ]
    by_fallback = sum(any(n.startswith("fallback") for n in r["nodes"]) for r in good)
    return {
        "gap_ms": round(max(gaps), 2),
        "slowest_ms": round(max(latencies, default=0.0), 2),
        "affected": sum(value > AFFECTED * 1e3 for value in latencies),
        "requests": len(inside),
        "lost": sum(r["status"] not in ("OK", REFUSED) for r in inside),
        "refused": sum(r["status"] == REFUSED for r in inside),
        "wrong": sum(r["wrong"] for r in inside),
        "doubles": sum(trial.fault < at <= trial.again + 0.5 for at, *_ in doubles),
        "retried": sum(r["attempt"] > 1 for r in inside),
        "fallback_share": round(by_fallback / max(1, len(good)), 3),
        "return_slowest_ms": round(max(after, default=0.0), 2),
        "lag_ms": round(max(((r["sent"] - r["due"]) * 1e3 for r in inside), default=0.0), 2),
        "stayed_out": trial.out,
        "window_s": round(trial.end - trial.fault, 2),
    }


def scenario_figures(
    requests: Sequence[Mapping[str, Any]],
    doubles: Sequence[Sequence[float]],
    trials: Sequence[Trial],
    ack_waits: Mapping[str, float],
    targets: Targets,
) -> dict[str, Any]:
    """One scenario's part of the document. Lost, refused and wrong are of all requests, in
    and between the windows."""
    each = [window_figures(requests, doubles, trial) for trial in trials]
    statuses = Counter(r["status"] for r in requests)
    errors = Counter(f"{r['status']}: {r['message'][:160]}" for r in requests if r.get("message"))
    doc: dict[str, Any] = {
        "trials": len(trials),
        "requests": len(requests),
        "lost": len(requests) - statuses["OK"] - statuses[REFUSED],
        "refused": statuses[REFUSED],
        "wrong": sum(r["wrong"] for r in requests),
        "doubles": len(doubles),
        "wrong_doubles": int(sum(row[2] for row in doubles)),
        "retried": sum(r["attempt"] > 1 for r in requests),
        "stayed_out": sum(trial.out for trial in trials),
        "statuses": dict(statuses),
        "errors": dict(errors.most_common(5)),
        "usual_ms": usual(requests, trials),
        "ack_wait_ms": dict(ack_waits),
    }
    for key in ("gap_ms", "slowest_ms", "affected", "return_slowest_ms", "lag_ms"):
        doc[key] = spread([figures[key] for figures in each])
    doc["each"] = each
    doc["targets"] = verdicts(doc, targets)
    doc["passed"] = all(verdict["passed"] for verdict in doc["targets"])
    return doc


def verdicts(doc: Mapping[str, Any], targets: Targets) -> list[dict[str, Any]]:
    """Each promise with its limit, what was measured, and whether it was kept."""
    p99 = doc["usual_ms"]["p99"]
    rows: list[tuple[str, float, float]] = [
        ("lost", 0, doc["lost"]),
        ("refused", 0, doc["refused"]),
        ("wrong", 0, doc["wrong"]),
    ]
    if targets.gap is not None:
        rows.append(("longest gap p99 ms", targets.gap, doc["gap_ms"]["p99"]))
    if targets.slowest is not None:
        rows.append(("slowest request p99 ms", targets.slowest, doc["slowest_ms"]["p99"]))
    if targets.by_ack_wait:
        limit = max(doc["ack_wait_ms"].values(), default=0.0) + 2 * p99
        rows.append(("slowest <= ack_wait + 2 x p99, ms", limit, doc["slowest_ms"]["p99"]))
    if targets.times_usual is not None:
        limit = targets.times_usual * p99
        rows.append(
            (f"slowest <= {targets.times_usual:g} x p99, ms", limit, doc["slowest_ms"]["max"])
        )
    if targets.doubles is not None:
        rows.append(("answered twice", targets.doubles, doc["doubles"]))
    if targets.returns:
        rows.append(("nodes that did not serve again", 0, doc["stayed_out"]))
    return [
        {"target": name, "limit": round(limit, 2), "measured": value, "passed": value <= limit}
        for name, limit, value in rows
    ]
