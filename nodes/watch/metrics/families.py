"""Status documents as families of Prometheus metrics, by its naming: base units, `_total` counters.

One code for a node's own endpoint and for the exporter, so that a dashboard fits both. Labels come
from closed lists, or from documents that were read within bounds (`swarm.fleet.documents`); each
node adds at most `MOST_STAGES` stages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from nodes.cli.fields import part, rows
from nodes.features import features
from nodes.figures import Fields, known
from nodes.health.endpoint import Page, Pages, on_loop
from swarm.errors import Status
from swarm.flow.latency import BUCKETS_S
from swarm.wire.urgency import NAMES

MOST_STAGES, MOST_BREAKERS, MOST_SLOS = 32, 32, 32  # of one node that are told
MOST_FLAWS, MOST_GPUS, MOST_MODELS = 32, 16, 64
EXPIRIES = ("credentials", "certificate", "server")
STATES = ("waiting", "loading", "ready", "draining", "left", "failed", "dead", "silent", "suspect")
STATUSES = frozenset(map(str, Status))
GOSSIP_EVENTS = ("joined", "left", "suspected", "refuted", "died", "returned", "duplicate")
TOLD_EVENTS = (
    *GOSSIP_EVENTS,
    "took-over", "gave-back", "rejected", "routing", "watchdog", "slo",
    "clock-stepped", "device", "flaw", "mended",
    *(kind for each in features() for kind in each.tells),
)  # fmt: skip
OUTCOMES = ("served", "failed", "expired", "refused", "cancelled", "dead_lettered", "redelivered")
PLACED, MOST_PLACED = ("edge", "split", "core"), 8
CAPTURES = ("captured", "dropped", "answered", "failed", "degraded")
BREAKERS = {"closed": 0.0, "half-open": 0.5, "open": 1.0}
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
OTHER = "other"

PEER_STATES = ("alive", "suspect", "dead", "left")
INFO = ("host", "software", "model", "version")
FLAW = ("stream", "title", "of", "mend")
NODE = ("node", "role")
STAGE = (*NODE, "model", "version", "stage")

# What each family is, for who reads it.
ABOUT = dict(
    line.split(maxsplit=1)
    for line in """
swarm_node_up  1 where the node serves.
swarm_node_state  1 at the present state of the node.
swarm_node_info  Who the node is.
swarm_node_silence_seconds  Since the last status.
swarm_node_marked  1 where what the node says cannot be.
swarm_events  Events that the node told.
swarm_takeovers  Stages that it took over.
swarm_edge_captures  Captures by what became of them.
swarm_wanted_replicas  Nodes that the stage should have, as this node sees the mesh.
swarm_flaw  1 while something that the mesh keeps at its server is not as it has to be.
swarm_expiry_timestamp_seconds  When what admits the node ends, in seconds since 1970.
swarm_connection_round_trip_seconds  Round trip to the server, as the kernel measures it.
swarm_connection_loss_ratio  Share of the connection's segments that had to be sent again.
swarm_gossip_bytes  Gossip, without discovery.
swarm_gossip_peers  Nodes known.
swarm_hop_queue_seconds  From a message's arrival to its run.
swarm_hop_compute_seconds  The run of a request's batch.
swarm_hop_batch_size  Requests by the size of the batch that they were computed in.
swarm_hop_requests  Requests by what became of them at the stage.
swarm_hop_blocked  Results that found the next lane full.
swarm_stage_device  1 at the device that the stage computes on.
swarm_stage_device_lost  1 where the stage computes on another device than it should: that one \
failed.
swarm_requests  Answers by status.
swarm_requests_degraded  Answers that a lighter model gave, by the model that was asked.
swarm_requests_by_priority  Answers to requests that say a priority.
swarm_request_latency_seconds  From a request's arrival to its answer, as the node that answers \
sees it.
swarm_breaker_open  Circuit breakers of stages that failed: 1 open, 0.5 half-open, 0 closed.
swarm_edge_placed  Requests by where they were computed.
swarm_edge_probes  Copies by which an edge learns how long other ways take.
swarm_slo_latency_target_seconds  99 % of a model's requests are to be answered within this time.
swarm_slo_errors_target_ratio  No larger share of a model's requests is to fail.
swarm_slo_burn_rate  How many times faster than allowed the error budget is spent, by window.
swarm_slo_burning  1 where a model's objective burns.
swarm_exporter_connected  1 while the exporter is connected to the mesh's server.
swarm_exporter_sees  1 where the exporter's user may read this of the mesh.
swarm_fleet_nodes  Nodes by state.
swarm_fleet_refused  Statuses and events that were not taken, by reason.
swarm_stage_ready_nodes  Nodes that are ready for a stage of a version that serves.
swarm_stage_nodes  The same, by what the nodes are to the stage.
swarm_server_up  1 where an embedded server is up.
swarm_server_store  1 at the state of an embedded server's store.
swarm_server_store_free_bytes  Room on the disk of an embedded server's store.
swarm_client_requests  Answers to clients that use the library, by status, as they see them.
swarm_client_requests_degraded  Those of them that a lighter model gave.
swarm_process_resident_memory_bytes  Resident memory of the node's process.
swarm_process_cpu_seconds  CPU time of the node's process.
swarm_node_uptime_seconds  Since its start.
swarm_node_requests_per_second  Requests of the last seconds, by the node's own count.
swarm_connection_segments  Segments of TCP that the present connection has sent.
swarm_connections  Connections to a server since the node's start.
swarm_gpu_load_ratio  Share of the time in which it computes.
swarm_gpu_memory_used_bytes  Of the device, by all processes.
swarm_gpu_memory_bytes  Memory of the device.
swarm_gossip_suspicions  Nodes that it began to suspect.
swarm_gossip_deaths  Nodes that it saw die.
swarm_lane_depth  Messages waiting in the stage's lanes, as this node last saw them.
swarm_hop_in_hand  Requests in hand.
swarm_weights_version  Of the weights in use.
swarm_request_attempts  Requests sent to stage 1, each attempt.
swarm_request_retries  Attempts after the first.
swarm_request_hedges  Second copies of requests that took long.
swarm_requests_under_way  Requests that wait for their answers.
""".strip().splitlines()
)
# Fields that are told as they are: of which part of a status, how, the family, the field.
FIGURES: dict[str, list[list[str]]] = {}
for _line in """
process gauge swarm_process_resident_memory_bytes rss_bytes
process counter swarm_process_cpu_seconds cpu_seconds
process gauge swarm_node_uptime_seconds uptime_s
process gauge swarm_node_requests_per_second rate
connection gauge swarm_connection_segments sent
connection counter swarm_connections connections
gpu gauge swarm_gpu_load_ratio load
gpu gauge swarm_gpu_memory_used_bytes used
gpu gauge swarm_gpu_memory_bytes total
gossip counter swarm_gossip_suspicions suspected
gossip counter swarm_gossip_deaths died
stage gauge swarm_lane_depth waiting
stage gauge swarm_hop_in_hand in_hand
stage gauge swarm_weights_version weights
request counter swarm_request_attempts attempts
request counter swarm_request_retries retries
request counter swarm_request_hedges hedges
request gauge swarm_requests_under_way under_way
""".strip().splitlines():
    FIGURES.setdefault(_line.partition(" ")[0], []).append(_line.split()[1:])

OF_FEATURES = [
    told for each in features() if each.figures for told in import_module(each.figures).FIGURES
]
ABOUT |= {name: each.about for told in OF_FEATURES for name, each in told.figures.items()}

Kinds = list[tuple[str, Any]]  # (kind, count)


@dataclass(frozen=True, slots=True)
class NodeStatus:
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

    def gauge(self, name: str, labels: Sequence[str], at: Iterable[str], to: Any) -> None:
        """A value at this moment; None tells nothing."""
        if to is not None:
            self._family(GaugeMetricFamily, name, labels).add_metric(list(at), float(to))

    def counter(self, name: str, labels: Sequence[str], at: Iterable[str], to: Any) -> None:
        """A count since the node's start; None tells nothing. name: without `_total`."""
        if to is not None:
            self._family(CounterMetricFamily, name, labels).add_metric(list(at), float(to))

    def histogram(
        self,
        name: str,
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
        family = self._family(HistogramMetricFamily, name, labels)
        buckets = list(zip(ends, map(float, accumulate(counts)), strict=True))
        family.add_metric(list(at), buckets, total)

    def _family(self, kind: Any, name: str, labels: Sequence[str]) -> Any:
        family = self._by_name.get(name)
        if family is None:
            family = self._by_name[name] = kind(name, ABOUT[name], labels=list(labels))
        return family

    def figures(self, of: str, labels: Sequence[str], at: Sequence[str], document: Fields) -> None:
        """The fields of a document that are told as they are; of: as in `FIGURES`."""
        for how, name, key in FIGURES[of]:
            add = self.gauge if how == "gauge" else self.counter
            add(name, labels, at, document.get(key))

    def by_kind(self, name: str, labels: Sequence[str], at: Sequence[str], counts: Kinds) -> None:
        """A counter for each kind; the last label is the kind."""
        for kind, count in counts:
            self.counter(name, labels, (*at, kind), count)

    def durations(
        self, name: str, labels: Sequence[str], at: Sequence[str], document: Fields
    ) -> None:
        """A histogram of seconds, as a status document has it."""
        if document:
            counts, total = document["counts"], document["sum"]
            self.histogram(name, labels, at, BUCKETS_S, counts, total)

    # --- a node ---------------------------------------------------------------------------

    def add(self, node: NodeStatus) -> None:
        """All that a node says."""
        status = node.status
        at = (node.node, _text(status.get("role")))
        state = node.state if node.state in STATES else OTHER
        info = tuple(_text(status.get(name)) for name in INFO)
        events, gossip = part(status, "events"), part(status, "gossip")
        self.gauge("swarm_node_up", NODE, at, node.state == "ready")
        self.gauge("swarm_node_state", (*NODE, "state"), (*at, state), 1)
        self.gauge("swarm_node_info", (*NODE, *INFO), (*at, *info), 1)
        self.gauge("swarm_node_silence_seconds", NODE, at, node.silence)
        self.gauge("swarm_node_marked", NODE, at, bool(node.marks))
        self.figures("process", NODE, at, status)
        if gossip:
            self._gossip(at, gossip)
        events_by_kind = known(events, TOLD_EVENTS)
        self.by_kind("swarm_events", (*NODE, "kind"), at, events_by_kind)
        takeovers = events.get("took-over", 0)
        self.counter("swarm_takeovers", NODE, at, takeovers)
        for stage in rows(status.get("stages"))[:MOST_STAGES]:
            self._stage(at, stage)
        if requests := part(status, "requests"):
            self._requests(at, requests)
        captures = known(part(status, "edge"), CAPTURES)
        self.by_kind("swarm_edge_captures", (*NODE, "outcome"), at, captures)
        self._placement(at, part(status, "placement"))
        for row in rows(status.get("wanted"))[:MOST_STAGES]:
            where = (*at, *(_text(row.get(name)) for name in ("model", "version", "stage")))
            self.gauge("swarm_wanted_replicas", STAGE, where, row.get("replicas"))
        for slo in rows(status.get("slo"))[:MOST_SLOS]:
            self._slo(at, slo)
        for flaw in rows(status.get("flaws"))[:MOST_FLAWS]:
            named = tuple(_text(flaw.get(name)) for name in FLAW)
            self.gauge("swarm_flaw", (*NODE, *FLAW), (*at, *named), 1)
        self._connection(at, part(status, "connection"))
        for what, moment in known(part(status, "expires"), EXPIRIES):
            self.gauge("swarm_expiry_timestamp_seconds", (*NODE, "what"), (*at, what), moment)
        for gpu in rows(status.get("gpus"))[:MOST_GPUS]:
            self.figures("gpu", (*NODE, "gpu"), (*at, _text(gpu.get("gpu"))), gpu)
        for told in OF_FEATURES:
            for row in told.rows(status):
                where = (*at, *(_text(row.get(key)) for key in told.labels.values()))
                for name, each in told.figures.items():
                    labels = (*NODE, *told.labels, *([each.by] if each.by else []))
                    getattr(self, each.kind)(name, labels, where, each.of(row))

    def _connection(self, at: tuple[str, ...], connection: Fields) -> None:
        microseconds = connection.get("round_trip_us")
        seconds = None if microseconds is None else microseconds / 1e6
        self.gauge("swarm_connection_round_trip_seconds", NODE, at, seconds)
        sent, resent = connection.get("sent"), connection.get("resent")
        if sent is not None and resent is not None:
            loss = min(1.0, resent / sent) if sent else 0.0
            self.gauge("swarm_connection_loss_ratio", NODE, at, loss)
        self.figures("connection", NODE, at, connection)

    def _gossip(self, at: tuple[str, ...], gossip: Fields) -> None:
        sizes = [(way, gossip.get(f"{way}_bytes")) for way in ("sent", "received")]
        self.by_kind("swarm_gossip_bytes", (*NODE, "direction"), at, sizes)
        for state, count in known(part(gossip, "peers"), PEER_STATES):
            self.gauge("swarm_gossip_peers", (*NODE, "state"), (*at, state), count)
        seen = {"suspected": 0, "died": 0} | part(gossip, "events")
        self.figures("gossip", NODE, at, seen)

    def _stage(self, of: tuple[str, ...], stage: Fields) -> None:
        at = (*of, *(_text(stage.get(name)) for name in ("model", "version", "stage")))
        self.durations("swarm_hop_queue_seconds", STAGE, at, part(stage, "queue_s"))
        self.durations("swarm_hop_compute_seconds", STAGE, at, part(stage, "compute_s"))
        sizes = stage.get("batch_sizes")
        if isinstance(sizes, list):
            self.histogram("swarm_hop_batch_size", STAGE, at, BATCH_BOUNDS, sizes, None)
        counters = part(stage, "counters")
        outcomes = known(counters, OUTCOMES)
        self.by_kind("swarm_hop_requests", (*STAGE, "outcome"), at, outcomes)
        self.counter("swarm_hop_blocked", STAGE, at, counters.get("blocked"))
        self.figures("stage", STAGE, at, stage)
        if device := _text(stage.get("device")):
            self.gauge("swarm_stage_device", (*STAGE, "device"), (*at, device), 1)
            wanted = _text(stage.get("wanted_device")) or device
            self.gauge("swarm_stage_device_lost", STAGE, at, wanted != device)

    def _requests(self, at: tuple[str, ...], requests: Fields) -> None:
        statuses = known(part(requests, "by_status"), STATUSES)
        self.by_kind("swarm_requests", (*NODE, "status"), at, statuses)
        degraded = part(requests, "degraded")
        for model in sorted(degraded)[:MOST_MODELS]:
            self.counter("swarm_requests_degraded", (*NODE, "model"), (*at, model), degraded[model])
        priorities = known(part(requests, "by_priority"), NAMES)
        self.by_kind("swarm_requests_by_priority", (*NODE, "priority"), at, priorities)
        latency = part(requests, "latency_s")
        self.durations("swarm_request_latency_seconds", NODE, at, latency)
        self.figures("request", NODE, at, requests)
        breakers = part(requests, "breakers")
        for where in sorted(breakers)[:MOST_BREAKERS]:
            open_ = BREAKERS.get(breakers[where])
            self.gauge("swarm_breaker_open", (*NODE, "where"), (*at, where), open_)

    def _placement(self, at: tuple[str, ...], placement: Fields) -> None:
        kinds: dict[str, float] = {}
        probes = 0
        for version in [part(placement, key) for key in sorted(placement)[:MOST_PLACED]]:
            probes += version.get("probes", 0)
            for way, count in part(version, "ways").items():
                kind = way.partition("@")[0]
                kinds[kind] = kinds.get(kind, 0) + count
        if placement:
            self.by_kind("swarm_edge_placed", (*NODE, "way"), at, known(kinds, PLACED))
            self.counter("swarm_edge_probes", NODE, at, probes)

    def _slo(self, of: tuple[str, ...], slo: Fields) -> None:
        at, labels = (*of, _text(slo.get("model"))), (*NODE, "model")
        p99 = slo.get("p99_ms")
        target = None if p99 is None else p99 / 1e3
        self.gauge("swarm_slo_latency_target_seconds", labels, at, target)
        self.gauge("swarm_slo_errors_target_ratio", labels, at, slo.get("errors"))
        for window, burn in known(part(slo, "burn"), ("5m", "30m", "1h", "6h")):
            self.gauge("swarm_slo_burn_rate", (*labels, "window"), (*at, window), burn)
        self.gauge("swarm_slo_burning", labels, at, bool(slo.get("burning")))


def _text(value: object) -> str:
    return "" if value is None else str(value)


# The page that Prometheus scrapes, beside the probes of the same port.


Collect = Callable[[], Iterable[Metric]]


class _OnLoop(Collector):
    """Asks the event loop. `describe` tells nothing, so that registering asks nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Collect) -> None:
        self._loop = loop
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return on_loop(self._loop, lambda: list(self._collect()))


def figures(collect: Collect) -> Pages:
    """The pages `/metrics` and, for any other path, the same: `collect()`, which runs on this event
    loop, and the figures of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OnLoop(asyncio.get_running_loop(), collect))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    def page(accept: str) -> Page:
        encode, kind = choose_encoder(accept)
        try:
            return Page(200, kind, encode(registry))
        except TimeoutError:
            return Page(503, "text/plain", b"the event loop does not turn\n")

    return {"/metrics": page, "*": page}
