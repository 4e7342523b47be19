"""A node of the fleet's view as the page shows it.

`swarm.fleet.documents` has checked the types and ranges of a status; a field may still be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.cli.fields import one_line
from swarm.fleet.documents import COUNT, SHARE, Faults, form, name, text
from swarm.fleet.view import FleetNode

LONGEST_TEXT = 240  # characters
PRIMARY, STANDBY, FALLBACK = 0, 1, 2
MOST_PLANS = 4  # versions with a plan, of one node
MOST_ROWS = 16  # cameras, and stages of language models, of one node that are shown
MOST_PARTS = 32  # of compositions, of one node
EDGE_COUNTS = ("captured", "dropped", "answered", "failed", "degraded")
GOSSIP_STATES = ("alive", "suspect", "dead", "left")
EXPIRIES = ("credentials", "certificate", "server")
ENOUGH_SENT = 1000  # packets from which on their loss tells something

Pair = tuple[float | None, float | None]  # p50 and p99, milliseconds


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage of one node. Counts since the node's start; latencies in ms, None where nothing was
    measured in the last ten seconds. lost_device: where it should compute and cannot, or ""."""

    stage: int
    model: str
    version: str
    weights: int
    served: float
    failed: float
    refused: float
    waiting: int
    in_hand: int
    queue: Pair
    compute: Pair
    device: str
    lost_device: str


@dataclass(frozen=True, slots=True)
class LearningFacts:
    """What a node tells of its learning; accuracy from 0 to 1, on its own held-out samples."""

    model: str
    version: str
    weights: int
    rounds: int
    samples: int
    minted: int
    accuracy: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The requests that a node has answered for others, from end to end, in the last ten seconds.
    answered, failed: since its start."""

    latency: Pair
    answered: float
    failed: float


@dataclass(frozen=True, slots=True)
class CameraFacts:
    """A camera of an edge. frames, sent, dropped: since the start. age: from capture to result."""

    name: str
    state: str
    error: str
    frames: float
    sent: float
    dropped: float
    age: Pair


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Sessions at a stage of a language model. between: from a token to the next, None for stages
    behind the first."""

    stage: int
    model: str
    sessions: int
    slots: int
    tokens: float
    kv_bytes: float
    between: Pair


@dataclass(frozen=True, slots=True)
class PartFacts:
    """A part of a composition that a node runs. what: its model, or what it is else. ms: None for
    one that stands for others. runs, left_out: since the node's start."""

    model: str
    version: str
    part: str
    what: str
    ms: Pair
    runs: float
    left_out: float


@dataclass(frozen=True, slots=True)
class ObjectiveFacts:
    """What is promised for a model, as one node that answers measures it. burning: what burns its
    error budget too fast, `latency` or `errors`, "" for nothing. burn: the fastest burn rate.
    requests, slow, failed: since the node's start."""

    model: str
    p99_ms: float | None
    errors: float | None
    burning: str
    burn: float
    requests: float
    slow: float
    failed: float


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """How a node sees the rollout of its model. share: percent of the traffic that the version
    gets now. state: running, done, rolled-back."""

    model: str
    version: str
    share: float
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The plan in force of a version, as a node of role auto knows it, and the slot of it that the
    node fills. number: 0 without a plan. pace_us: microseconds of each stage there, from stage
    1."""

    model: str
    version: str
    number: int
    frozen: bool
    reason: str
    lacking: str
    slots: tuple[tuple[int, int], ...]
    replicas: tuple[int, ...]
    slot: tuple[int, int] | None
    pace_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FlawFacts:
    """What a node finds wrong at the server. of: the version whose lane it is, "" for the rest."""

    title: str
    of: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. model and version are tokens or "". since: the start of its state. at: its last
    word; both RFC 3339, by its host's clock. expires: when what admits it ends, in seconds since
    1970. loss: share of its connection's packets that were sent again. breakers: that are open."""

    node: str
    role: str
    state: str
    detail: str
    since: str
    at: str
    model: str
    version: str
    host: str
    pid: int
    software: str
    priority: int
    rss: float
    cpu: float
    ready_ms: float
    stages: tuple[StageFacts, ...]
    peers: dict[str, int]
    gossip_refused: int
    edge: dict[str, float]
    cameras: tuple[CameraFacts, ...]
    sessions: tuple[SessionFacts, ...]
    parts: tuple[PartFacts, ...]
    requests: RequestFacts | None
    learning: LearningFacts | None
    objectives: tuple[ObjectiveFacts, ...]
    rollout: RolloutFacts | None
    plans: tuple[PlanFacts, ...]
    flaws: tuple[FlawFacts, ...]
    expires: dict[str, float]
    loss: float
    breakers: tuple[str, ...]


LEARNING = form(
    {
        "model": name,
        "version": name,
        "weights": COUNT,
        "rounds": COUNT,
        "samples": COUNT,
        "minted": COUNT,
        "accuracy": lambda value, where, faults: value and SHARE(value, where, faults),
        "problem": text,
    }
)


def facts_of(node: FleetNode) -> NodeFacts:
    """What is known of a node: of its last status, else of what others told."""
    status, gossiped = node.status, node.gossiped
    gossip, edge = status.get("gossip", {}), status.get("edge")
    peers, refused = gossip.get("peers", {}), gossip.get("refused", {})
    stages = tuple(_stage(stage, status) for stage in node.stages if stage.get("stage"))
    first = stages[0] if stages else None
    return NodeFacts(
        node=node.node,
        role=node.role or "?",
        state=str(status.get("state", "ready")),
        detail=_text(status, "detail"),
        since=_text(status, "since")[:40],
        at=_text(status, "at")[:40],
        model=status.get("model", "") or (first.model if first else ""),
        version=status.get("version", "") or (first.version if first else ""),
        host=_text(status, "host"),
        pid=int(status.get("pid", 0)),
        software=_text(status, "software")[:40],
        priority=int(status.get("priority", gossiped.get("priority", 0))),
        rss=float(status.get("rss_bytes", 0)),
        cpu=float(status.get("cpu_seconds", 0)),
        ready_ms=float(status.get("ready_ms", 0)),
        stages=stages,
        peers={state: int(peers.get(state, 0)) for state in GOSSIP_STATES},
        gossip_refused=int(sum(refused.values())),
        edge={count: float(edge.get(count, 0)) for count in EDGE_COUNTS} if edge else {},
        cameras=tuple(map(_camera, status.get("cameras", ())[:MOST_ROWS])),
        sessions=tuple(map(_sessions, status.get("generation", ())[:MOST_ROWS])),
        parts=tuple(map(_part, status.get("compositions", ())[:MOST_PARTS])),
        requests=_requests(status.get("requests")),
        learning=_learning(status.get("learning")),
        objectives=tuple(_objective(slo) for slo in status.get("slo", ()) if slo["model"]),
        rollout=_rollout(status.get("rollout")),
        plans=tuple(map(_plan, status.get("plans", ())[:MOST_PLANS])),
        flaws=tuple(_flaw(flaw) for flaw in status.get("flaws", ())[:MOST_ROWS]),
        expires={w: float(at) for w, at in status.get("expires", {}).items() if w in EXPIRIES},
        loss=_loss(status.get("connection", {})),
        breakers=_open(status.get("requests", {}).get("breakers", {})),
    )


def _text(document: Mapping[str, Any], field: str) -> str:
    return one_line(document.get(field, "")[:LONGEST_TEXT])


def _stage(stage: Mapping[str, Any], status: Mapping[str, Any]) -> StageFacts:
    counters = stage.get("counters", {})
    return StageFacts(
        stage=int(stage["stage"]),
        model=stage.get("model", "") or status.get("model", ""),
        version=stage.get("version", ""),
        weights=int(stage.get("weights", 0)),
        served=float(counters.get("served", 0)),
        failed=float(counters.get("failed", 0)),
        refused=float(counters.get("refused", 0)),
        waiting=int(stage.get("waiting", 0)),
        in_hand=int(stage.get("in_hand", 0)),
        queue=_pair(stage.get("queue_ms")),
        compute=_pair(stage.get("compute_ms")),
        device=(device := _text(stage, "device")),
        lost_device=wanted if (wanted := _text(stage, "wanted_device") or device) != device else "",
    )


def _flaw(flaw: Mapping[str, Any]) -> FlawFacts:
    return FlawFacts(_text(flaw, "title"), _text(flaw, "of"))


def _loss(connection: Mapping[str, float]) -> float:
    """0 where too few packets were sent to tell."""
    sent = connection.get("sent", 0)
    return min(1.0, connection.get("resent", 0) / sent) if sent > ENOUGH_SENT else 0.0


def _open(breakers: Mapping[str, str]) -> tuple[str, ...]:
    stands_open = (where for where, state in sorted(breakers.items()) if state == "open")
    return tuple(one_line(where[:LONGEST_TEXT]) for where in stands_open)[:MOST_ROWS]


def _pair(latency: Mapping[str, float] | None) -> Pair:
    # A window without requests has latencies of zero.
    return (latency.get("p50") or None, latency.get("p99") or None) if latency else (None, None)


def _requests(part: Mapping[str, Any] | None) -> RequestFacts | None:
    if not part:
        return None
    by_status: Mapping[str, float] = part.get("by_status", {})
    answered = float(by_status.get("OK", 0))
    failed = float(sum(by_status.values()) - answered)
    return RequestFacts(_pair(part.get("latency_ms")), answered, failed)


def _camera(camera: Mapping[str, Any]) -> CameraFacts:
    return CameraFacts(
        name=camera["name"],
        state=one_line(camera["state"][:40]),
        error=_text(camera, "error"),
        frames=float(camera.get("frames", 0)),
        sent=float(camera.get("sent", 0)),
        dropped=float(camera.get("dropped", 0)),
        age=_pair(camera.get("age_ms")),
    )


def _sessions(stage: Mapping[str, Any]) -> SessionFacts:
    return SessionFacts(
        stage=int(stage["stage"]),
        model=stage["model"],
        sessions=int(stage.get("sessions", 0)),
        slots=int(stage.get("slots", 0)),
        tokens=float(stage.get("counters", {}).get("tokens", 0)),
        kv_bytes=float(stage.get("kv_bytes", 0)),
        between=_pair(stage.get("between_tokens_ms")),
    )


def _part(part: Mapping[str, Any]) -> PartFacts:
    counters = part.get("counters", {})
    return PartFacts(
        model=part["model"],
        version=part["version"],
        part=part["part"],
        what=_text(part, "is"),
        ms=_pair(part.get("ms")),
        runs=float(counters.get("runs", 0)),
        left_out=float(counters.get("left_out", 0)),
    )


def _learning(part: object) -> LearningFacts | None:
    if not isinstance(part, dict) or not part:
        return None
    read = LEARNING(part, "learning", Faults())
    accuracy = read.get("accuracy")
    return LearningFacts(
        model=read.get("model", ""),
        version=read.get("version", ""),
        weights=int(read.get("weights", 0)),
        rounds=int(read.get("rounds", 0)),
        samples=int(read.get("samples", 0)),
        minted=int(read.get("minted", 0)),
        accuracy=None if accuracy is None else float(accuracy),
        problem=one_line(read.get("problem", "")[:LONGEST_TEXT]),
    )


def _rollout(part: Mapping[str, Any] | None) -> RolloutFacts | None:
    if not part or not part["model"] or not part["version"]:
        return None
    return RolloutFacts(
        model=part["model"],
        version=part["version"],
        share=float(part["share"]),
        state=one_line(part.get("state", "")[:40]),
        reason=one_line(part.get("reason", "")[:LONGEST_TEXT]),
    )


def _plan(part: Mapping[str, Any]) -> PlanFacts:
    return PlanFacts(
        model=part["model"],
        version=part["version"],
        number=int(part.get("plan", 0)),
        frozen=part.get("frozen") is True,
        reason=_text(part, "reason"),
        lacking=_text(part, "lacking"),
        slots=tuple(filter(None, map(_range, part.get("slots", ())))),
        replicas=tuple(map(int, part.get("replicas", ()))),
        slot=_range(part.get("slot", ())),
        pace_us=tuple(map(float, part.get("pace_us", ()))),
    )


def _range(stages: Sequence[float]) -> tuple[int, int] | None:
    """First and last stage; None for what is no range."""
    if len(stages) != 2 or stages[0] > stages[1]:
        return None
    return int(stages[0]), int(stages[1])


def _objective(slo: Mapping[str, Any]) -> ObjectiveFacts:
    return ObjectiveFacts(
        model=slo["model"],
        p99_ms=slo.get("p99_ms"),
        errors=slo.get("errors"),
        burning=one_line(slo.get("burning", "")[:40]),
        burn=max(slo.get("burn", {}).values(), default=0.0),
        requests=float(slo.get("requests", 0)),
        slow=float(slo.get("slow", 0)),
        failed=float(slo.get("failed", 0)),
    )
