"""One model version as a requester sees it: its admission, and its way to the stage at which its
requests enter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from swarm.fleet.placement import Placement
from swarm.flow.latency import Usual
from swarm.model import ModelInfo
from swarm.requests.admission import WHOLE_PIPELINE, ModelAdmission
from swarm.transport.coding import accepts
from swarm.transport.routes import Routes
from swarm.transport.stage_sender import StageSender


class ModelWay:
    """stage: at which requests enter, 1 as a rule. accepts: see `swarm.transport.coding.accepts`.
    slowest: usual seconds of a run of the slowest stage. no_lane_at: when no lane took a message
    last, by the routes' clock; 0.0 once the lane has taken one. in_flight(): requests of this
    requester that are under way."""

    def __init__(
        self, routes: Routes, info: ModelInfo, in_flight: Callable[[], int], stage: int = 1
    ) -> None:
        self.no_lane_at = 0.0
        self.routes = routes
        self.admission = ModelAdmission(partial(_present, routes.placement, info, stage))
        self.slowest = Usual(
            max((s.compute_ms / 1e3 for s in info.stages[stage - 1 :]), default=0.0)
        )
        self.sender = StageSender(routes, info, stage, self.slowest, in_flight, requests=True)
        self._info = info
        self.tend()

    def tend(self) -> None:
        """Call about every second: look which codecs pay on this process's link at present."""
        self.accepts = accepts(self.routes, self._info)


def _present(placement: Placement, info: ModelInfo, first: int, stage: int) -> frozenset[str]:
    """See `ModelAdmission`."""
    stages = range(first, info.last + 1) if stage == WHOLE_PIPELINE else (stage,)
    serving = [placement.serving(info, each) for each in stages]
    return frozenset().union(*serving) if all(serving) else frozenset()
