"""The inputs of a routing decision: the nodes as gossip describes them, and the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarm.subjects import ANY

_LARGEST_MEASURE = 1e9
_MEASURES = (
    "load",
    "in_flight",
    "compute_ewma_s",
    "compute_p50_s",
    "compute_p99_s",
    "queue_ewma_s",
    "queue_p50_s",
    "queue_p99_s",
)

__all__ = ["ANY", "Candidate", "Candidates", "RequestInfo"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node at one stage, as last heard of through gossip. All times in seconds.

    load: requests queued in its lanes. in_flight: requests running or held by it.
    compute_*, queue_*: time per hop; 0.0 for not yet known.
    weight: capacity relative to its peers (workers, or an operator's preference); > 0.
    memory_free_bytes: None where the node does not say. heard: when this state came, by the clock
    of whoever routes: requests sent since are not in `load` yet.

    Gossip is foreign data: counts and times are brought into 0 .. 1e9 (NaN counts as 0), and a
    weight outside 1e-6 .. 1e6 counts as 1, so that no choice can fail on them.
    """

    node: str
    stage: int = 1
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Model -> versions it serves at that stage."""
    load: float = 0.0
    in_flight: float = 0.0
    compute_ewma_s: float = 0.0
    compute_p50_s: float = 0.0
    compute_p99_s: float = 0.0
    queue_ewma_s: float = 0.0
    queue_p50_s: float = 0.0
    queue_p99_s: float = 0.0
    weight: float = 1.0
    memory_free_bytes: int | None = None
    device: str = "cpu"
    draining: bool = False
    suspected: bool = False
    warmed: bool = True
    heard: float = 0.0

    def __post_init__(self) -> None:
        for name in _MEASURES:
            value = getattr(self, name)
            if not 0.0 <= value <= _LARGEST_MEASURE:
                object.__setattr__(
                    self, name, _LARGEST_MEASURE if value > _LARGEST_MEASURE else 0.0
                )
        if not 1e-6 <= self.weight <= 1e6:
            object.__setattr__(self, "weight", 1.0)


Candidates = Sequence[Candidate]


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The part of a request that routing may know. version: "" lets the desired state decide."""

    id: str
    model: str
    version: str = ""
    stage: int = 1
    agent: str = ""
    session: str = ""
    features_bytes: int = 0
    remaining_s: float = 1.0
    """Seconds of budget left."""
