"""Whole requests, from the results that edges publish: the one place where the network shows.

A node measures its queue and its computing. Only who asked knows how long all of it took, and an
edge with `--sink` tells, hop by hop. The rest of its latency is neither queue nor computing: it is
the network between the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodes.dashboard.history import rounded
from swarm.flow.bucket import TokenBucket
from swarm.flow.latency import LatencyWindow
from swarm.wire.hops import is_hop

PER_SECOND, AT_ONCE = 50.0, 100.0  # results that are read; more would tell no more
MOST_MODELS = 64
MOST_MS = 600_000.0


class _Measured:
    """Of one model: seconds from the request to its answer, and those of them in the network."""

    def __init__(self) -> None:
        self.latency = LatencyWindow()
        self.network = LatencyWindow()
        self.read = 0
        self.failed = 0


class Answers:
    """model_of(node): the model that a node serves, or "". Results name nodes only."""

    def __init__(self, model_of: Callable[[str], str]) -> None:
        self._model_of = model_of
        self._pace = TokenBucket(PER_SECOND, AT_ONCE)
        self._measured: dict[str, _Measured] = {}

    def wanted(self, now: float) -> bool:
        """Whether one more result is to be read; asked before it is parsed."""
        return self._pace.take(now)

    def take(self, document: dict[str, Any], now: float) -> None:
        """A result of an edge; one that is not of its form is passed over."""
        latency, hops = document.get("latency_ms"), document.get("hops")
        if not isinstance(latency, int | float) or not 0 <= latency <= MOST_MS:
            return
        if not isinstance(hops, list) or not hops or len(hops) > 64 or not all(map(is_hop, hops)):
            return
        model = self._model_of(hops[-1]["node"])
        if not model:
            return
        if model not in self._measured and len(self._measured) >= MOST_MODELS:
            return
        measured = self._measured.setdefault(model, _Measured())
        in_nodes = sum(hop["queue_us"] + hop["compute_us"] for hop in hops) / 1e3
        measured.read += 1
        measured.failed += document.get("status") != "OK"
        measured.latency.add(latency / 1e3, now)
        measured.network.add(max(0.0, latency - in_nodes) / 1e3, now)

    def as_doc(self, model: str, now: float) -> dict[str, Any] | None:
        """Milliseconds over the last ten seconds; None where nobody told."""
        measured = self._measured.get(model)
        if measured is None or not measured.latency.percentile(0.5, now):
            return None
        return {
            "p50": rounded(measured.latency.percentile(0.5, now) * 1e3),
            "p99": rounded(measured.latency.percentile(0.99, now) * 1e3),
            "network": rounded(measured.network.percentile(0.5, now) * 1e3),
            "read": measured.read,
            "failed": measured.failed,
        }
