"""From a load's records to figures and verdicts: pure functions of what was recorded.

All times inside are seconds of `time.monotonic()`, all figures milliseconds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.faults.scenarios import Targets
from bench.report.figure import percentile

REFUSED = "RESOURCE_EXHAUSTED"  # told at once, so the client can ask elsewhere: not lost
AFFECTED_MS = 50.0  # a slower request is counted as affected
AFTER_RETURN = 0.4  # seconds after all nodes are ready in which requests count for the return
DOUBLES_UNTIL = 0.5  # seconds after all nodes are ready in which second answers are counted


@dataclass(frozen=True)
class Trial:
    """The moments of one trial, in seconds of `time.monotonic()`.

    From `quiet` to `fault` nothing happens; from `fault` to `end` is the window; at `ready_again`
    all nodes are ready. stayed_out: nodes that lived and served nothing after the window.
    """

    quiet: float
    fault: float
    end: float
    ready_again: float
    stayed_out: int = 0


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and maximum of some values."""
    return {
        "p50": round(percentile(values, 0.50), 2),
        "p99": round(percentile(values, 0.99), 2),
        "max": round(max(values, default=0.0), 2),
    }


def quiet_latency(
    requests: Sequence[Mapping[str, Any]], trials: Sequence[Trial]
) -> dict[str, float]:
    """Milliseconds of the requests in the quiet parts, which no fault and no start disturbs."""
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
    """The cost of one fault for the clients that asked around it, in milliseconds and counts.

    A window holds the requests that were unanswered at the fault or asked before the window's end.
    The longest gap is the longest time between two answers in a row, from the last answer before
    the fault to the window's end.
    """
    inside = [r for r in requests if r["done"] > trial.fault and r["sent"] <= trial.end]
    good = [r for r in inside if r["status"] == "OK"]
    latencies = [(r["done"] - r["sent"]) * 1e3 for r in good]
    answers = sorted(r["done"] for r in requests if r["status"] == "OK")
    before = [t for t in answers if t <= trial.fault][-1:]
    # A silence that lasts until the end of the window counts too.
    times = [
        *(before or [trial.fault]),
        *(t for t in answers if trial.fault < t <= trial.end),
        trial.end,
    ]
    gaps = [(b - a) * 1e3 for a, b in itertools.pairwise(times)]
    after = [
        (r["done"] - r["sent"]) * 1e3
        for r in requests
        if r["status"] == "OK" and trial.end < r["sent"] <= trial.ready_again + AFTER_RETURN
    ]
    by_fallback = sum(any(n.startswith("fallback") for n in r["nodes"]) for r in good)
    return {
        "gap_ms": round(max(gaps), 2),
        "slowest_ms": round(max(latencies, default=0.0), 2),
        "affected": sum(value > AFFECTED_MS for value in latencies),
        "requests": len(inside),
        "lost": sum(r["status"] not in ("OK", REFUSED) for r in inside),
        "refused": sum(r["status"] == REFUSED for r in inside),
        "wrong": sum(r["wrong"] for r in inside),
        "doubles": sum(trial.fault < at <= trial.ready_again + DOUBLES_UNTIL for at, *_ in doubles),
        "retried": sum(r["attempt"] > 1 for r in inside),
        "fallback_share": round(by_fallback / max(1, len(good)), 3),
        "return_slowest_ms": round(max(after, default=0.0), 2),
        "lag_ms": round(max(((r["sent"] - r["due"]) * 1e3 for r in inside), default=0.0), 2),
        "stayed_out": trial.stayed_out,
        "window_s": round(trial.end - trial.fault, 2),
    }


def scenario_figures(
    requests: Sequence[Mapping[str, Any]],
    doubles: Sequence[Sequence[float]],
    trials: Sequence[Trial],
    ack_waits: Mapping[str, float],
    targets: Targets,
) -> dict[str, Any]:
    """One scenario's figures. lost, refused and wrong count all requests, inside the windows and
    between them.

    requests: the requester's rows. doubles: [arrived, sent, wrong] of each second answer.
    ack_waits: milliseconds by stage.
    """
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
        "stayed_out": sum(trial.stayed_out for trial in trials),
        "statuses": dict(statuses),
        "errors": dict(errors.most_common(5)),
        "usual_ms": quiet_latency(requests, trials),
        "ack_wait_ms": dict(ack_waits),
    }
    for key in ("gap_ms", "slowest_ms", "affected", "return_slowest_ms", "lag_ms"):
        doc[key] = spread([figures[key] for figures in each])
    doc["each"] = each
    doc["targets"] = verdicts(doc, targets)
    doc["passed"] = all(verdict["passed"] for verdict in doc["targets"])
    return doc


def verdicts(doc: Mapping[str, Any], targets: Targets) -> list[dict[str, Any]]:
    """Each target with its limit, the measured value, and whether the target was met."""
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
