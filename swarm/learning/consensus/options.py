"""Settings of the learning on the mesh: every knob with its unit and its effect."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.learning.consensus.graph import AUTOMATIC, DEGREE, SHAPES


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """How one node exchanges what it learns. Raises `ValueError` for a value out of its range."""

    share: float = 0.1
    """Share (0..1) of the entries that one delta carries."""

    bytes_per_delta: int = 64 * 1024
    """Bytes that one message of a round takes at most: the budget of a round and of each link that
    carries it. Where it is less than `share` needs, fewer entries travel."""

    half: bool = True
    """Deltas carry float16 values, float32 otherwise. What rounding leaves is sent later."""

    graph: str = AUTOMATIC
    """`ring`, `random`, `complete`, `auto`: see `graph.graph_of`."""

    degree: int = DEGREE
    """Usual neighbours of a node in a random graph. Below 4, one hostile neighbour has too much
    weight to be told from an honest one."""

    hostile: float = 0.0
    """Share (0..1) of the neighbours' weight that may lie. Above 0, differences are clipped and
    neighbours that stay far away are left out (`limits`). 0 trusts everybody who may teach."""

    longest: float = math.inf
    """Euclidean length above which a delta is refused, whatever is usual."""

    messages_per_s: float = 20.0
    """Messages a second that one sender may send; twice as many at once. More are refused, and not
    read."""

    snapshots_per_s: float = 1.0
    """Snapshots a second that one neighbour may ask for."""

    def __post_init__(self) -> None:
        if self.graph not in SHAPES:
            raise ValueError(f"a graph is one of {', '.join(SHAPES)}, not {self.graph!r}")
        if not 0 < self.share <= 1 or not 0 <= self.hostile < 1:
            raise ValueError("share is above 0 and at most 1, hostile from 0 and below 1")
        if self.bytes_per_delta < 1024 or self.degree < 2:
            raise ValueError("bytes_per_delta is at least 1024, degree at least 2")
        if not (self.longest > 0 and self.messages_per_s > 0 and self.snapshots_per_s > 0):
            raise ValueError("longest, messages_per_s and snapshots_per_s are above 0")
