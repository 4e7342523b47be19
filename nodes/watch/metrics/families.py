"""Status documents as families of Prometheus metrics, by its naming: base units, `_total` counters.

One code for a node's own endpoint and for the exporter, so that a dashboard fits both. Labels come
from closed lists, or from documents that were read within bounds (`swarm.fleet.documents`); each
node adds at most `MOST_STAGES` stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from swarm.errors import Status
from swarm.flow.latency import BUCKETS_S

MOST_STAGES, MOST_BREAKERS, MOST_SLOS = 32, 32, 32  # of one node that are told
STATES = ("waiting", "loading", "ready", "draining", "left", "failed", "dead", "silent", "suspect")
STATUSES = frozenset(map(str, Status))
GOSSIP_EVENTS = ("joined", "left", "suspected", "refuted", "died", "returned", "duplicate")
TOLD_EVENTS = (
    *GOSSIP_EVENTS,
    "took-over", "gave-back", "rejected", "routing", "watchdog", "learning", "audit", "slo",
    "rolled-out", "rolled-back",
)  # fmt: skip
OUTCOMES = ("served", "failed", "expired", "refused", "cancelled", "dead_lettered", "redelivered")
CAPTURES = ("captured", "dropped", "answered", "failed", "degraded")
BREAKERS = {"closed": 0.0, "half-open": 0.5, "open": 1.0}
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
OTHER = "other"

NODE = ("node", "role")
STAGE = (*NODE, "model", "version", "stage")


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a node. state: as a picture has it. silence: seconds since its last status.
    marks: kinds of offences that it is marked for."""

    node: str
    status: Mapping[str, Any]
    state: str
    silence: float = 0.0
    marks: Sequence[str] = ()


@dataclass
class Families:
    """The metrics of any number of nodes: `add` each, then iterate."""

    _by_name: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._by_name.values())

    def gauge(
        self, name: str, about: str, labels: Sequence[str], at: Iterable[str], to: Any
    ) -> None:
        """A value at this moment; None tells nothing."""
        if to is not None:
            self._family(GaugeMetricFamily, name, about, labels).add_metric(list(at), float(to))

    def counter(
        self, name: str, about: str, labels: Sequence[str], at: Iterable[str], to: Any
    ) -> None:
        """A count since the node's start; None tells nothing. name: without `_total`."""
        if to is not None:
            self._family(CounterMetricFamily, name, about, labels).add_metric(list(at), float(to))

    def histogram(
        self,
        name: str,
        about: str,
        labels: Sequence[str],
        at: Iterable[str],
        bounds: Sequence[float],
        counts: Sequence[float],
        total: float | None,
    ) -> None:
        """Counts of each bucket, the last one above all bounds; total: the sum of the values."""
        if len(counts) != len(bounds) + 1:
            return  # of a node with other buckets
        ends = [*map(str, map(float, bounds)), "+Inf"]
        family = self._family(HistogramMetricFamily, name, about, labels)
        buckets = list(zip(ends, map(float, accumulate(counts)), strict=True))
        family.add_metric(list(at), buckets, total)

    def _family(self, kind: Any, name: str, about: str, labels: Sequence[str]) -> Any:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = kind(name, about, labels=list(labels))
        return family

    # --- a node ---------------------------------------------------------------------------

    def add(self, told: Told) -> None:
        """All that a node tells."""
        status = told.status
        at = (told.node, _text(status.get("role")))
        info = ("host", "software", "model", "version")
        self.gauge("swarm_node_up", "1 where the node serves.", NODE, at, told.state == "ready")
        self.gauge(
            "swarm_node_state",
            "1 at the present state of the node.",
            (*NODE, "state"),
            (*at, told.state if told.state in STATES else OTHER),
            1,
        )
        self.gauge(
            "swarm_node_info",
            "Who the node is.",
            (*NODE, *info),
            (*at, *(_text(status.get(name)) for name in info)),
            1,
        )
        self.gauge("swarm_node_silence_seconds", "Since the last status.", NODE, at, told.silence)
        self.gauge(
            "swarm_node_marked", "1 where what the node says cannot be.", NODE, at, bool(told.marks)
        )
        self._process(at, status)
        self._gossip(at, status)
        for kind, count in _known(status.get("events"), TOLD_EVENTS):
            self.counter(
                "swarm_events", "Events that the node told.", (*NODE, "kind"), (*at, kind), count
            )
        takeovers = _part(status, "events").get("took-over", 0)
        self.counter("swarm_takeovers", "Stages that it took over.", NODE, at, takeovers)
        for stage in _rows(status.get("stages"))[:MOST_STAGES]:
            self._stage(at, stage)
        self._requests(at, _part(status, "requests"))
        for kind, count in _known(status.get("edge"), CAPTURES):
            self.counter(
                "swarm_edge_captures",
                "Captures by what became of them.",
                (*NODE, "outcome"),
                (*at, kind),
                count,
            )
        for slo in _rows(status.get("slo"))[:MOST_SLOS]:
            self._slo(at, slo)

    def _process(self, at: tuple[str, ...], status: Mapping[str, Any]) -> None:
        self.gauge(
            "swarm_process_resident_memory_bytes",
            "Resident memory of the node's process.",
            NODE,
            at,
            status.get("rss_bytes"),
        )
        self.counter(
            "swarm_process_cpu_seconds",
            "CPU time of the node's process.",
            NODE,
            at,
            status.get("cpu_seconds"),
        )
        self.gauge(
            "swarm_node_uptime_seconds", "Since its start.", NODE, at, status.get("uptime_s")
        )
        self.gauge(
            "swarm_node_requests_per_second",
            "Requests of the last seconds, by the node's own count.",
            NODE,
            at,
            status.get("rate"),
        )

    def _gossip(self, at: tuple[str, ...], status: Mapping[str, Any]) -> None:
        gossip = _part(status, "gossip")
        for direction in ("sent", "received"):
            self.counter(
                "swarm_gossip_bytes",
                "Gossip, without discovery.",
                (*NODE, "direction"),
                (*at, direction),
                gossip.get(f"{direction}_bytes"),
            )
        for state, count in _known(gossip.get("peers"), ("alive", "suspect", "dead", "left")):
            self.gauge("swarm_gossip_peers", "Nodes known.", (*NODE, "state"), (*at, state), count)
        seen = _part(gossip, "events")
        self.counter(
            "swarm_gossip_suspicions",
            "Nodes that it began to suspect.",
            NODE,
            at,
            seen.get("suspected", 0) if gossip else None,
        )
        self.counter(
            "swarm_gossip_deaths",
            "Nodes that it saw die.",
            NODE,
            at,
            seen.get("died", 0) if gossip else None,
        )

    def _stage(self, node: tuple[str, ...], stage: Mapping[str, Any]) -> None:
        model, version = _text(stage.get("model")), _text(stage.get("version"))
        at = (*node, model, version, _text(stage.get("stage")))
        for name, about in (
            ("queue", "From a message's arrival to its run."),
            ("compute", "The run of a request's batch."),
        ):
            durations = _part(stage, f"{name}_s")
            if durations:
                self.histogram(
                    f"swarm_hop_{name}_seconds",
                    about,
                    STAGE,
                    at,
                    BUCKETS_S,
                    durations["counts"],
                    durations["sum"],
                )
        sizes = stage.get("batch_sizes")
        if isinstance(sizes, list):
            self.histogram(
                "swarm_hop_batch_size",
                "Requests by the size of the batch that they were computed in.",
                STAGE,
                at,
                BATCH_BOUNDS,
                sizes,
                None,
            )
        counters = _part(stage, "counters")
        for outcome, count in _known(counters, OUTCOMES):
            self.counter(
                "swarm_hop_requests",
                "Requests by what became of them at the stage.",
                (*STAGE, "outcome"),
                (*at, outcome),
                count,
            )
        self.counter(
            "swarm_hop_blocked",
            "Results that found the next lane full.",
            STAGE,
            at,
            counters.get("blocked"),
        )
        self.gauge(
            "swarm_lane_depth",
            "Messages waiting in the stage's lanes, as this node last saw them.",
            STAGE,
            at,
            stage.get("waiting"),
        )
        self.gauge("swarm_hop_in_hand", "Requests in hand.", STAGE, at, stage.get("in_hand"))
        self.gauge(
            "swarm_weights_version", "Of the weights in use.", STAGE, at, stage.get("weights")
        )

    def _requests(self, at: tuple[str, ...], requests: Mapping[str, Any]) -> None:
        if not requests:
            return
        for status, count in _known(requests.get("by_status"), STATUSES):
            self.counter(
                "swarm_requests", "Answers by status.", (*NODE, "status"), (*at, status), count
            )
        latency = _part(requests, "latency_s")
        if latency:
            self.histogram(
                "swarm_request_latency_seconds",
                "From a request's arrival to its answer, as the node that answers sees it.",
                NODE,
                at,
                BUCKETS_S,
                latency["counts"],
                latency["sum"],
            )
        for name, about in (
            ("attempts", "Requests sent to stage 1, each attempt."),
            ("retries", "Attempts after the first."),
            ("hedges", "Second copies of requests that took long."),
        ):
            self.counter(f"swarm_request_{name}", about, NODE, at, requests.get(name))
        self.gauge(
            "swarm_requests_under_way",
            "Requests that wait for their answers.",
            NODE,
            at,
            requests.get("under_way"),
        )
        breakers = _part(requests, "breakers")
        for where in sorted(breakers)[:MOST_BREAKERS]:
            self.gauge(
                "swarm_breaker_open",
                "Circuit breakers of stages that failed: 1 open, 0.5 half-open, 0 closed.",
                (*NODE, "where"),
                (*at, where),
                BREAKERS.get(breakers[where]),
            )

    def _slo(self, node: tuple[str, ...], slo: Mapping[str, Any]) -> None:
        at, labels = (*node, _text(slo.get("model"))), (*NODE, "model")
        p99 = slo.get("p99_ms")
        self.gauge(
            "swarm_slo_latency_target_seconds",
            "99 % of a model's requests are to be answered within this time.",
            labels,
            at,
            None if p99 is None else p99 / 1e3,
        )
        self.gauge(
            "swarm_slo_errors_target_ratio",
            "No larger share of a model's requests is to fail.",
            labels,
            at,
            slo.get("errors"),
        )
        for window, burn in _known(slo.get("burn"), ("5m", "30m", "1h", "6h")):
            self.gauge(
                "swarm_slo_burn_rate",
                "How many times faster than allowed the error budget is spent, by window.",
                (*labels, "window"),
                (*at, window),
                burn,
            )
        self.gauge(
            "swarm_slo_burning",
            "1 where a model's objective burns.",
            labels,
            at,
            bool(slo.get("burning")),
        )


def _known(counts: object, names: Iterable[str]) -> list[tuple[str, Any]]:
    """The counts of known names; others would be labels without bounds."""
    if not isinstance(counts, dict):
        return []
    return [(name, counts[name]) for name in sorted(set(names) & counts.keys())]


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, dict) else {}


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return "" if value is None else str(value)
