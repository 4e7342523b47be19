"""What a node counts and times, per stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from swarm.flow.latency import LatencyWindow
from swarm.requests.stood_in import StoodIn

BATCH_BUCKETS = 8


@dataclass(slots=True)
class Counters:
    """Monotonic counts since the node's start."""

    served: int = 0
    failed: int = 0
    expired: int = 0
    refused: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    cancelled: int = 0  # not computed, since nobody waits for them any more
    batches: int = 0
    taken: int = 0  # from a process of this host, and not from a lane
    handed_over: int = 0  # given to the next stage's node, and not to its lane
    continued: int = 0  # computed further by the next stage of this node, without a message
    blocked: int = 0  # times that the next lane was full
    shadows_dropped: int = 0  # copies of requests, of a rollout

    def as_doc(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class StageStats:
    """Counters, and latencies over the last ten seconds and since the start."""

    counters: Counters = field(default_factory=Counters)
    queue: LatencyWindow = field(default_factory=LatencyWindow)
    compute: LatencyWindow = field(default_factory=LatencyWindow)
    # Requests by the size of the batch that they were computed in: up to 1, 2, 4 … 64, above.
    batch_sizes: list[int] = field(default_factory=lambda: [0] * BATCH_BUCKETS)
    busy: float = 0.0  # seconds of all runs since the start
    stood_in: StoodIn = field(default_factory=StoodIn)  # answers in the place of other models

    def as_doc(self, now: float) -> dict[str, Any]:
        """`now`: `time.monotonic()`. `_ms`: milliseconds of the last ten seconds; `_s`: seconds
        since the start."""
        stood_in = self.stood_in.rows(now)
        return {
            **({"stood_in": stood_in} if stood_in else {}),
            "queue_ms": latencies(self.queue, now),
            "compute_ms": latencies(self.compute, now),
            "queue_s": histogram(self.queue),
            "compute_s": histogram(self.compute),
            "batch_sizes": list(self.batch_sizes),
        }


def batch_bucket(batch: int) -> int:
    """The place of a batch's size in `batch_sizes`."""
    return min((batch - 1).bit_length(), BATCH_BUCKETS - 1)


def histogram(window: LatencyWindow) -> dict[str, Any]:
    """All samples since the start, in the buckets `BUCKETS_S` (seconds), and their sum."""
    counts, total = window.since_start()
    return {"counts": counts, "sum": round(total, 6)}


def latencies(window: LatencyWindow, now: float) -> dict[str, float]:
    """Percentiles of the last ten seconds, milliseconds."""
    return {
        "p50": round(window.percentile(0.50, now) * 1e3, 3),
        "p99": round(window.percentile(0.99, now) * 1e3, 3),
        "ewma": round(window.ewma * 1e3, 3),
    }
