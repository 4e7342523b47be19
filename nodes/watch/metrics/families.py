"""Status documents as families of Prometheus metrics, by its naming: base units, `_total` counters.

One code for a node's own endpoint and for the exporter, so that a dashboard fits both. Labels come
from closed lists, or from documents that were read within bounds (`swarm.fleet.documents`); each
node adds at most `MOST_STAGES` stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from nodes.cli.fields import part, rows
from swarm.errors import Status
from swarm.flow.latency import BUCKETS_S

MOST_STAGES, MOST_BREAKERS, MOST_SLOS, MOST_CAMERAS = 32, 32, 32, 64  # of one node that are told
MOST_FLAWS, MOST_GPUS = 32, 16
EXPIRIES = ("credentials", "certificate", "server")
STATES = ("waiting", "loading", "ready", "draining", "left", "failed", "dead", "silent", "suspect")
STATUSES = frozenset(map(str, Status))
GOSSIP_EVENTS = ("joined", "left", "suspected", "refuted", "died", "returned", "duplicate")
TOLD_EVENTS = (
    *GOSSIP_EVENTS,
    "took-over", "gave-back", "rejected", "routing", "watchdog", "learning", "audit", "slo",
    "rolled-out", "rolled-back", "planned", "proposed", "clock-stepped",
    "device", "flaw", "mended",
)  # fmt: skip
OUTCOMES = ("served", "failed", "expired", "refused", "cancelled", "dead_lettered", "redelivered")
PLACED, MOST_PLACED = ("edge", "split", "core"), 8
CAPTURES = ("captured", "dropped", "answered", "failed", "degraded")
SESSIONS = ("opened", "refused", "evicted", "rebound", "gone")
FRAMES = ("frames", "dropped", "torn", "sent")
BREAKERS = {"closed": 0.0, "half-open": 0.5, "open": 1.0}
DOORS = ("http", "grpc")
# What an alert reads of them.
FAILURES = {
    "http": ("500", "502", "503", "504"),
    "grpc": ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"),
}
# Of HTTP and of gRPC, with which a gateway answers; 499: the client went away.
CODES = STATUSES | {"CANCELLED", "UNKNOWN", "UNIMPLEMENTED", "499", *map(str, map(int, HTTPStatus))}
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
OTHER = "other"

PEER_STATES = ("alive", "suspect", "dead", "left")
INFO = ("host", "software", "model", "version")
FLAW = ("stream", "title", "of", "mend")
NODE = ("node", "role")
STAGE = (*NODE, "model", "version", "stage")

Fields = Mapping[str, Any]
Kinds = list[tuple[str, Any]]  # (kind, count)
Figure = tuple[Callable[..., None], str, str, str]  # how it is told, name, help, field


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

    def figures(
        self, table: Iterable[Figure], labels: Sequence[str], at: Sequence[str], document: Fields
    ) -> None:
        """The fields of a document that are told as they are."""
        for add, name, about, key in table:
            add(self, name, about, labels, at, document.get(key))

    def by_kind(
        self, name: str, about: str, labels: Sequence[str], at: Sequence[str], counts: Kinds
    ) -> None:
        """A counter for each kind; the last label is the kind."""
        for kind, count in counts:
            self.counter(name, about, labels, (*at, kind), count)

    def durations(
        self, name: str, about: str, labels: Sequence[str], at: Sequence[str], document: Fields
    ) -> None:
        """A histogram of seconds, as a status document has it."""
        if document:
            counts, total = document["counts"], document["sum"]
            self.histogram(name, about, labels, at, BUCKETS_S, counts, total)

    # --- a node ---------------------------------------------------------------------------

    def add(self, node: NodeStatus) -> None:
        """All that a node says."""
        status = node.status
        at = (node.node, _text(status.get("role")))
        state = node.state if node.state in STATES else OTHER
        info = tuple(_text(status.get(name)) for name in INFO)
        events, gossip = part(status, "events"), part(status, "gossip")
        self.gauge("swarm_node_up", "1 where the node serves.", NODE, at, node.state == "ready")
        about = "1 at the present state of the node."
        self.gauge("swarm_node_state", about, (*NODE, "state"), (*at, state), 1)
        self.gauge("swarm_node_info", "Who the node is.", (*NODE, *INFO), (*at, *info), 1)
        self.gauge("swarm_node_silence_seconds", "Since the last status.", NODE, at, node.silence)
        about = "1 where what the node says cannot be."
        self.gauge("swarm_node_marked", about, NODE, at, bool(node.marks))
        self.figures(PROCESS_FIGURES, NODE, at, status)
        if gossip:
            self._gossip(at, gossip)
        events_by_kind = _known(events, TOLD_EVENTS)
        about = "Events that the node told."
        self.by_kind("swarm_events", about, (*NODE, "kind"), at, events_by_kind)
        takeovers = events.get("took-over", 0)
        self.counter("swarm_takeovers", "Stages that it took over.", NODE, at, takeovers)
        for stage in rows(status.get("stages"))[:MOST_STAGES]:
            self._stage(at, stage)
        if requests := part(status, "requests"):
            self._requests(at, requests)
        for door in DOORS:
            if counts := part(part(part(status, "gateway"), "doors"), door):
                self._door((*at, door), counts)
        captures = _known(part(status, "edge"), CAPTURES)
        about = "Captures by what became of them."
        self.by_kind("swarm_edge_captures", about, (*NODE, "outcome"), at, captures)
        self._placement(at, part(status, "placement"))
        for camera in rows(status.get("cameras"))[:MOST_CAMERAS]:
            self._camera(at, camera)
        for stage in rows(status.get("generation"))[:MOST_STAGES]:
            self._generation(at, stage)
        for row in rows(status.get("wanted"))[:MOST_STAGES]:
            where = (*at, *(_text(row.get(name)) for name in ("model", "version", "stage")))
            about = "Nodes that the stage should have, as this node sees the mesh."
            self.gauge("swarm_wanted_replicas", about, STAGE, where, row.get("replicas"))
        for slo in rows(status.get("slo"))[:MOST_SLOS]:
            self._slo(at, slo)
        for flaw in rows(status.get("flaws"))[:MOST_FLAWS]:
            named = tuple(_text(flaw.get(name)) for name in FLAW)
            about = "1 while something that the mesh keeps at its server is not as it has to be."
            self.gauge("swarm_flaw", about, (*NODE, *FLAW), (*at, *named), 1)
        self._connection(at, part(status, "connection"))
        for what, moment in _known(part(status, "expires"), EXPIRIES):
            about = "When what admits the node ends, in seconds since 1970."
            self.gauge(
                "swarm_expiry_timestamp_seconds", about, (*NODE, "what"), (*at, what), moment
            )
        if rollout := part(status, "rollout"):
            self._rollout(at, rollout)
        for gpu in rows(status.get("gpus"))[:MOST_GPUS]:
            self.figures(GPU_FIGURES, (*NODE, "gpu"), (*at, _text(gpu.get("gpu"))), gpu)

    def _connection(self, at: tuple[str, ...], connection: Fields) -> None:
        microseconds = connection.get("round_trip_us")
        about = "Round trip to the server, as the kernel measures it."
        seconds = None if microseconds is None else microseconds / 1e6
        self.gauge("swarm_connection_round_trip_seconds", about, NODE, at, seconds)
        sent, resent = connection.get("sent"), connection.get("resent")
        if sent is not None and resent is not None:
            about = "Share of the connection's segments that had to be sent again."
            loss = min(1.0, resent / sent) if sent else 0.0
            self.gauge("swarm_connection_loss_ratio", about, NODE, at, loss)
        self.figures(CONNECTION_FIGURES, NODE, at, connection)

    def _rollout(self, of: tuple[str, ...], rollout: Fields) -> None:
        at = (*of, *(_text(rollout.get(name)) for name in ("model", "version")))
        labels = (*NODE, "model", "version")
        about = "Share of the traffic that a version under rollout gets, as the node sees it."
        share = rollout.get("share")
        ratio = None if share is None else share / 100
        self.gauge("swarm_rollout_share_ratio", about, labels, at, ratio)
        about = "1 where the rollout was ended, and the version before serves again."
        back = rollout.get("state") == "rolled-back"
        self.gauge("swarm_rollout_rolled_back", about, labels, at, back)

    def _gossip(self, at: tuple[str, ...], gossip: Fields) -> None:
        sizes = [(way, gossip.get(f"{way}_bytes")) for way in ("sent", "received")]
        about = "Gossip, without discovery."
        self.by_kind("swarm_gossip_bytes", about, (*NODE, "direction"), at, sizes)
        for state, count in _known(part(gossip, "peers"), PEER_STATES):
            self.gauge("swarm_gossip_peers", "Nodes known.", (*NODE, "state"), (*at, state), count)
        seen = {"suspected": 0, "died": 0} | part(gossip, "events")
        self.figures(GOSSIP_FIGURES, NODE, at, seen)

    def _stage(self, of: tuple[str, ...], stage: Fields) -> None:
        at = (*of, *(_text(stage.get(name)) for name in ("model", "version", "stage")))
        about = "From a message's arrival to its run."
        self.durations("swarm_hop_queue_seconds", about, STAGE, at, part(stage, "queue_s"))
        about = "The run of a request's batch."
        self.durations("swarm_hop_compute_seconds", about, STAGE, at, part(stage, "compute_s"))
        sizes = stage.get("batch_sizes")
        if isinstance(sizes, list):
            about = "Requests by the size of the batch that they were computed in."
            self.histogram("swarm_hop_batch_size", about, STAGE, at, BATCH_BOUNDS, sizes, None)
        counters = part(stage, "counters")
        about = "Requests by what became of them at the stage."
        outcomes = _known(counters, OUTCOMES)
        self.by_kind("swarm_hop_requests", about, (*STAGE, "outcome"), at, outcomes)
        about = "Results that found the next lane full."
        self.counter("swarm_hop_blocked", about, STAGE, at, counters.get("blocked"))
        self.figures(STAGE_FIGURES, STAGE, at, stage)
        if device := _text(stage.get("device")):
            about = "1 at the device that the stage computes on."
            self.gauge("swarm_stage_device", about, (*STAGE, "device"), (*at, device), 1)
            wanted = _text(stage.get("wanted_device")) or device
            about = "1 where the stage computes on another device than it should: that one failed."
            self.gauge("swarm_stage_device_lost", about, STAGE, at, wanted != device)

    def _requests(self, at: tuple[str, ...], requests: Fields) -> None:
        statuses = _known(part(requests, "by_status"), STATUSES)
        self.by_kind("swarm_requests", "Answers by status.", (*NODE, "status"), at, statuses)
        about = "From a request's arrival to its answer, as the node that answers sees it."
        latency = part(requests, "latency_s")
        self.durations("swarm_request_latency_seconds", about, NODE, at, latency)
        self.figures(REQUEST_FIGURES, NODE, at, requests)
        breakers = part(requests, "breakers")
        about = "Circuit breakers of stages that failed: 1 open, 0.5 half-open, 0 closed."
        for where in sorted(breakers)[:MOST_BREAKERS]:
            open_ = BREAKERS.get(breakers[where])
            self.gauge("swarm_breaker_open", about, (*NODE, "where"), (*at, where), open_)

    def _door(self, at: tuple[str, ...], counts: Fields) -> None:
        # From zero on: a counter that begins with failures would have no rate.
        failures = dict.fromkeys(FAILURES[at[-1]], 0)
        codes, labels = _known(failures | part(counts, "by_code"), CODES), (*NODE, "door")
        about = "Answers to clients of HTTP and gRPC, by the protocol's code."
        self.by_kind("swarm_gateway_requests", about, (*labels, "code"), at, codes)
        self.figures(DOOR_FIGURES, labels, at, counts)

    def _placement(self, at: tuple[str, ...], placement: Fields) -> None:
        kinds: dict[str, float] = {}
        probes = 0
        for version in [part(placement, key) for key in sorted(placement)[:MOST_PLACED]]:
            probes += version.get("probes", 0)
            for way, count in part(version, "ways").items():
                kind = way.partition("@")[0]
                kinds[kind] = kinds.get(kind, 0) + count
        if placement:
            about = "Requests by where they were computed."
            self.by_kind("swarm_edge_placed", about, (*NODE, "way"), at, _known(kinds, PLACED))
            about = "Copies by which an edge learns how long other ways take."
            self.counter("swarm_edge_probes", about, NODE, at, probes)

    def _camera(self, of: tuple[str, ...], camera: Fields) -> None:
        at, labels = (*of, _text(camera.get("name"))), (*NODE, "camera")
        running = camera.get("state") == "running"
        self.gauge("swarm_camera_up", "1 where a camera gives frames.", labels, at, running)
        about = "From a frame's capture to its result."
        self.durations("swarm_camera_age_seconds", about, labels, at, part(camera, "age_s"))
        decode_ms = camera.get("decode_ms")
        about = "Usual time from a packet to its picture."
        seconds = None if decode_ms is None else decode_ms / 1e3
        self.gauge("swarm_camera_decode_seconds", about, labels, at, seconds)
        frames = _known(camera, FRAMES)
        about = "Frames by what became of them."
        self.by_kind("swarm_camera_frames", about, (*labels, "outcome"), at, frames)
        reconnects = camera.get("reconnects")
        self.counter("swarm_camera_reconnects", "Losses of a camera.", labels, at, reconnects)

    def _generation(self, of: tuple[str, ...], stage: Fields) -> None:
        at = (*of, *(_text(stage.get(name)) for name in ("model", "version", "stage")))
        self.figures(GENERATION_FIGURES, STAGE, at, stage)
        about = "From a session's request to its first token."
        first, between = part(stage, "first_token_s"), part(stage, "between_tokens_s")
        self.durations("swarm_generation_first_token_seconds", about, STAGE, at, first)
        about = "From a token of a session to its next one."
        self.durations("swarm_generation_between_tokens_seconds", about, STAGE, at, between)
        counters = part(stage, "counters")
        about = "Tokens that the stage has computed."
        self.counter("swarm_generation_tokens", about, STAGE, at, counters.get("tokens"))
        about = "Sessions by what became of them at the stage."
        known = _known(counters, SESSIONS)
        self.by_kind("swarm_generation_sessions", about, (*STAGE, "outcome"), at, known)

    def _slo(self, of: tuple[str, ...], slo: Fields) -> None:
        at, labels = (*of, _text(slo.get("model"))), (*NODE, "model")
        p99 = slo.get("p99_ms")
        about = "99 % of a model's requests are to be answered within this time."
        target = None if p99 is None else p99 / 1e3
        self.gauge("swarm_slo_latency_target_seconds", about, labels, at, target)
        about = "No larger share of a model's requests is to fail."
        self.gauge("swarm_slo_errors_target_ratio", about, labels, at, slo.get("errors"))
        about = "How many times faster than allowed the error budget is spent, by window."
        for window, burn in _known(part(slo, "burn"), ("5m", "30m", "1h", "6h")):
            self.gauge("swarm_slo_burn_rate", about, (*labels, "window"), (*at, window), burn)
        about = "1 where a model's objective burns."
        self.gauge("swarm_slo_burning", about, labels, at, bool(slo.get("burning")))


# Fields that are told as they are: how, name, help, field.
PROCESS_FIGURES: tuple[Figure, ...] = (
    (
        Families.gauge,
        "swarm_process_resident_memory_bytes",
        "Resident memory of the node's process.",
        "rss_bytes",
    ),
    (
        Families.counter,
        "swarm_process_cpu_seconds",
        "CPU time of the node's process.",
        "cpu_seconds",
    ),
    (Families.gauge, "swarm_node_uptime_seconds", "Since its start.", "uptime_s"),
    (
        Families.gauge,
        "swarm_node_requests_per_second",
        "Requests of the last seconds, by the node's own count.",
        "rate",
    ),
)
CONNECTION_FIGURES: tuple[Figure, ...] = (
    (
        Families.gauge,
        "swarm_connection_segments",
        "Segments of TCP that the present connection has sent.",
        "sent",
    ),
    (
        Families.counter,
        "swarm_connections",
        "Connections to a server since the node's start.",
        "connections",
    ),
)
GPU_FIGURES: tuple[Figure, ...] = (
    (Families.gauge, "swarm_gpu_load_ratio", "Share of the time in which it computes.", "load"),
    (Families.gauge, "swarm_gpu_memory_used_bytes", "Of the device, by all processes.", "used"),
    (Families.gauge, "swarm_gpu_memory_bytes", "Memory of the device.", "total"),
)
DOOR_FIGURES: tuple[Figure, ...] = (
    (
        Families.gauge,
        "swarm_gateway_in_flight",
        "Requests of clients of HTTP and gRPC that wait for their answer.",
        "in_flight",
    ),
    (
        Families.gauge,
        "swarm_gateway_connections",
        "Open connections of clients of HTTP.",
        "connections",
    ),
)
GOSSIP_FIGURES: tuple[Figure, ...] = (
    (
        Families.counter,
        "swarm_gossip_suspicions",
        "Nodes that it began to suspect.",
        "suspected",
    ),
    (Families.counter, "swarm_gossip_deaths", "Nodes that it saw die.", "died"),
)
STAGE_FIGURES: tuple[Figure, ...] = (
    (
        Families.gauge,
        "swarm_lane_depth",
        "Messages waiting in the stage's lanes, as this node last saw them.",
        "waiting",
    ),
    (Families.gauge, "swarm_hop_in_hand", "Requests in hand.", "in_hand"),
    (Families.gauge, "swarm_weights_version", "Of the weights in use.", "weights"),
)
GENERATION_FIGURES: tuple[Figure, ...] = (
    (Families.gauge, "swarm_generation_slots", "Sessions that fit.", "slots"),
    (Families.gauge, "swarm_generation_sessions_held", "Sessions in slots.", "sessions"),
    (Families.gauge, "swarm_generation_kv_bytes", "Keys and values of sessions.", "kv_bytes"),
    (
        Families.gauge,
        "swarm_generation_kept_bytes",
        "Hidden states that are kept to replay sessions.",
        "kept_bytes",
    ),
)
REQUEST_FIGURES: tuple[Figure, ...] = (
    (
        Families.counter,
        "swarm_request_attempts",
        "Requests sent to stage 1, each attempt.",
        "attempts",
    ),
    (Families.counter, "swarm_request_retries", "Attempts after the first.", "retries"),
    (
        Families.counter,
        "swarm_request_hedges",
        "Second copies of requests that took long.",
        "hedges",
    ),
    (
        Families.gauge,
        "swarm_requests_under_way",
        "Requests that wait for their answers.",
        "under_way",
    ),
)


def _known(counts: Fields, names: Iterable[str]) -> Kinds:
    """The counts of known names; others would be labels without bounds."""
    return [(name, counts[name]) for name in sorted(set(names) & counts.keys())]


def _text(value: object) -> str:
    return "" if value is None else str(value)
