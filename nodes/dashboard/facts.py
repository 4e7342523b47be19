"""What a status document says of its node, checked field by field: nothing in it is believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarm.subjects import TOKEN

MOST = 1e15  # a figure above it is absurd
MOST_STAGES = 64  # of one node that are read
LONGEST_TEXT = 240  # characters
STATES = ("waiting", "loading", "ready", "draining", "left", "failed")
PRIMARY, STANDBY, FALLBACK = 0, 1, 2

Pair = tuple[float | None, float | None]  # p50 and p99, milliseconds
NOTHING: Pair = (None, None)


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage of one node. Counts since the node's start; latencies in ms, None where nothing was
    measured in the last ten seconds."""

    stage: int
    version: str
    weights: int
    served: float
    failed: float
    refused: float
    waiting: int
    in_hand: int
    queue: Pair
    compute: Pair


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
class NodeFacts:
    """One node. model and version are tokens or "". absurd: fields that no node would send."""

    node: str
    role: str
    state: str
    detail: str
    since: str
    model: str
    version: str
    host: str
    pid: int
    software: str
    priority: int
    rss: float
    ready_ms: float
    stages: tuple[StageFacts, ...]
    peers: dict[str, int]
    gossip_refused: int
    edge: dict[str, float]
    learning: LearningFacts | None
    absurd: tuple[str, ...] = field(default=())


def one_line(text: str) -> str:
    """A text without characters that steer a terminal, a line or the direction of writing."""
    return "".join(c if c.isprintable() else "?" for c in text)


class _Reader:
    """Reads fields of one document, and notes those that are absurd."""

    def __init__(self) -> None:
        self.absurd: list[str] = []

    def figure(self, part: dict[str, Any], name: str) -> float | None:
        value = part.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            self._note(name)
            return None
        return float(value)

    def count(self, part: dict[str, Any], name: str) -> int:
        return int(self.figure(part, name) or 0)

    def text(self, part: dict[str, Any], name: str) -> str:
        value = part.get(name, "")
        if value is None:
            return ""
        if not isinstance(value, str):
            self._note(name)
            return "?"
        if len(value) > 4 * LONGEST_TEXT:
            self._note(name)
        return one_line(value[:LONGEST_TEXT])

    def token(self, part: dict[str, Any], name: str) -> str:
        """A name that may stand in a subject, or ""."""
        value = part.get(name, "")
        if value in ("", None):
            return ""
        if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
            self._note(name)
            return ""
        return value

    def part(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        part = document.get(name)
        if part is None:
            return {}
        if not isinstance(part, dict):
            self._note(name)
            return {}
        return part

    def pair(self, part: dict[str, Any], name: str) -> Pair:
        inner = self.part(part, name)
        # A window without requests has latencies of zero.
        return self.figure(inner, "p50") or None, self.figure(inner, "p99") or None

    def _note(self, name: str) -> None:
        if name not in self.absurd and len(self.absurd) < 8:
            self.absurd.append(name)


def read_facts(document: dict[str, Any]) -> NodeFacts:
    """Read a document whose field `node` is a token; never raises."""
    read = _Reader()
    state = read.text(document, "state")
    if state not in STATES:
        read.absurd.append("state")
        state = "?"
    gossip = read.part(document, "gossip")
    peers, edge = read.part(gossip, "peers"), read.part(document, "edge")
    refused = read.part(gossip, "refused")
    listed = document.get("stages")
    stages = listed if isinstance(listed, list) else []
    if len(stages) > MOST_STAGES or (listed is not None and listed is not stages):
        read.absurd.append("stages")
    return NodeFacts(
        node=str(document["node"]),
        role=read.token(document, "role") or "?",
        state=state,
        detail=read.text(document, "detail"),
        since=read.text(document, "since")[:40],
        model=read.token(document, "model"),
        version=read.token(document, "version"),
        host=read.text(document, "host"),
        pid=read.count(document, "pid"),
        software=read.text(document, "software")[:40],
        priority=min(9, read.count(document, "priority")),
        rss=read.figure(document, "rss_bytes") or 0.0,
        ready_ms=read.figure(document, "ready_ms") or 0.0,
        stages=tuple(_stage(read, s) for s in stages[:MOST_STAGES] if isinstance(s, dict)),
        peers={state: read.count(peers, state) for state in ("alive", "suspect", "dead", "left")},
        gossip_refused=sum(read.count(refused, name) for name in list(refused)[:32]),
        edge={name: read.figure(edge, name) or 0.0 for name in EDGE_COUNTS} if edge else {},
        learning=_learning(read, read.part(document, "learning")),
        absurd=tuple(read.absurd),
    )


EDGE_COUNTS = ("captured", "dropped", "answered", "failed", "degraded")


def _stage(read: _Reader, part: dict[str, Any]) -> StageFacts:
    counters = read.part(part, "counters")
    return StageFacts(
        stage=min(999, read.count(part, "stage")),
        version=read.token(part, "version"),
        weights=read.count(part, "weights"),
        served=read.figure(counters, "served") or 0.0,
        failed=read.figure(counters, "failed") or 0.0,
        refused=read.figure(counters, "refused") or 0.0,
        waiting=read.count(part, "waiting"),
        in_hand=read.count(part, "in_hand"),
        queue=read.pair(part, "queue_ms"),
        compute=read.pair(part, "compute_ms"),
    )


def _learning(read: _Reader, part: dict[str, Any]) -> LearningFacts | None:
    if not part:
        return None
    accuracy = read.figure(part, "accuracy")
    if accuracy is not None and accuracy > 1:
        read.absurd.append("accuracy")
        accuracy = None
    return LearningFacts(
        model=read.token(part, "model"),
        version=read.token(part, "version"),
        weights=read.count(part, "weights"),
        rounds=read.count(part, "rounds"),
        samples=read.count(part, "samples"),
        minted=read.count(part, "minted"),
        accuracy=accuracy,
        problem=read.text(part, "problem"),
    )
