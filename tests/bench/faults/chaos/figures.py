"""From the records of a run to its figures: pure functions."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.faults.chaos.load import GRACE, Asked
from bench.report.figure import percentile

OK = "OK"
MOST_ERRORS = 8  # kinds of messages that are shown


def request_figures(requests: Sequence[Asked], seconds: float, budget: float) -> dict[str, Any]:
    """Counts, the answered share (0..1), latencies of the answered requests and the longest time
    without an answer, in milliseconds.

    lost: requests without any outcome within their budget and `GRACE`. seconds: length of the load.
    """
    answered = [r for r in requests if r.status == OK and not r.wrong]
    latencies = [(r.done - r.sent) * 1e3 for r in answered]
    # Up to the end of the load: a silence that lasts until then counts too.
    moments = [0.0, *sorted(r.done for r in answered if r.done < seconds), seconds]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    statuses = Counter(r.status for r in requests if r.status)
    errors = Counter(f"{r.status}: {_kind(r.message)}" for r in requests if r.message)
    return {
        "requests": len(requests),
        "answered": len(answered),
        "answered_share": round(len(answered) / max(1, len(requests)), 4),
        "wrong": sum(r.wrong for r in requests),
        "lost": sum(is_lost(r, budget) for r in requests),
        "statuses": dict(statuses.most_common()),
        "errors": dict(errors.most_common(MOST_ERRORS)),
        "asked_again": sum(r.attempt > 1 for r in requests),
        "latency_ms": {
            "p50": round(percentile(latencies, 0.50), 2),
            "p90": round(percentile(latencies, 0.90), 2),
            "p99": round(percentile(latencies, 0.99), 2),
            "max": round(max(latencies, default=0.0), 2),
        },
        "longest_gap_ms": round(max(gaps) * 1e3, 1),
    }


def is_lost(request: Asked, budget: float) -> bool:
    """Whether a request ended without any outcome, or long after its budget."""
    return not request.status or request.done - request.sent > budget + GRACE


def _kind(message: str) -> str:
    """A message without its numbers, so that messages of one kind are counted together."""
    return re.sub(r"\d+(\.\d+)?", "N", message)[:120]


def failures(doc: Mapping[str, Any], at_least: float) -> list[str]:
    """The reasons why a run fails, in words; none where it passed. at_least: answered share."""
    reasons = []
    if doc["wrong"]:
        reasons.append(f"{doc['wrong']} answers were wrong")
    if doc["lost"]:
        reasons.append(f"{doc['lost']} requests ended without an outcome")
    if doc["answered_share"] < at_least:
        text = f"{doc['answered_share']:.1%} of the requests were answered, not {at_least:.1%}"
        reasons.append(text)
    return reasons
