"""Whole requests, as those tell who asked: the one place where the network shows.

A node measures its queue and its computing. Only who asked knows how long all of it took. An edge
with `--sink` tells so hop by hop: the rest of its latency is neither queue nor computing, it is the
network between the nodes. Where no edge does, nodes that answer requests tell percentiles of them,
and the network is about the rest of the median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nodes.watch.dashboard.facts import NodeFacts
from nodes.watch.dashboard.history import rounded
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
            "about": False,
        }


def estimate(nodes: Iterable[NodeFacts], pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same from the status documents of nodes that answer requests of a pipeline's model: of
    the median the one who answered most, of the p99 the worst. None where nobody tells."""
    told = [
        (facts.requests.answered, facts.requests.latency)
        for facts in nodes
        if facts.requests is not None
        and facts.requests.latency[0] is not None
        and facts.model == pipeline["model"]
    ]
    if not told:
        return None
    p50 = max(told)[1][0] or 0.0
    worst = max(latency[1] or 0.0 for _, latency in told)
    return {
        "p50": rounded(p50),
        "p99": rounded(worst),
        "network": rounded(max(0.0, p50 - (pipeline["p50"] or 0.0))),
        "about": True,
    }
