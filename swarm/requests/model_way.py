"""What a requester keeps for one model version: its admission, and the way to its stage 1."""

from __future__ import annotations

from collections.abc import Callable

from swarm.flow.usual import Usual
from swarm.model import ModelInfo
from swarm.requests.admission import ModelAdmission
from swarm.transport.stage_sender import Routes, StageSender
from swarm.wire.hops import Hop


class ModelWay:
    """One model version: its admission, its way to stage 1, and how long its slowest stage
    takes.

    in_flight(): requests of this requester that are under way."""

    def __init__(self, routes: Routes, info: ModelInfo, in_flight: Callable[[], int]) -> None:
        self.admission = ModelAdmission()
        self.slowest = Usual(max((s.compute_ms / 1e3 for s in info.stages), default=0.0))
        self.sender = StageSender(routes, info, 1, lambda: self.slowest.seconds, in_flight)

    def ran(self, hops: tuple[Hop, ...]) -> None:
        """A request was answered, over these hops."""
        if hops:
            self.slowest.add(max([hop.compute_us for hop in hops]) / 1e6)
