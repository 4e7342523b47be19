"""One model version as a requester sees it: its admission, and its way to the stage at which its
requests enter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from swarm.errors import Status
from swarm.fleet.placement import Placement
from swarm.flow.latency import Usual
from swarm.model import ModelInfo
from swarm.requests.admission import WHOLE_PIPELINE, ModelAdmission
from swarm.requests.gate import TurnGate
from swarm.requests.request import Ask
from swarm.transport.coding import accepts
from swarm.transport.routes import Routes
from swarm.transport.stage_sender import StageSender
from swarm.wire.hops import PRIORITIES
from swarm.wire.messages import Result


class ModelWay:
    """stage: at which requests enter, 1 as a rule. accepts: see `swarm.transport.coding.accepts`.
    slowest: usual seconds of a run of the slowest stage. no_lane_at: when no lane took a message
    last, by the routes' clock; 0.0 once the lane has taken one. in_flight(): requests of this
    requester that are under way. gate: where its requests wait for their turns, None where nobody
    uses priorities."""

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
        self._stages = info.last - stage + 1
        self.gate: TurnGate[asyncio.Future[None]] | None = None
        self.tend()

    def tend(self) -> None:
        """Call about every second: look which codecs pay on this process's link at present."""
        self.accepts = accepts(self.routes, self._info)
        if self.gate is not None and self.gate.is_over(self.routes.clock()):
            self.gate = None

    def open_gate(self) -> None:
        """Priorities are in use."""
        now = self.routes.clock()
        if self.gate is None:
            self.gate = TurnGate(self._stages, now)
        self.gate.keep(now)

    async def turn(self, ask: Ask) -> bool:
        """Wait for a request's turn, after its admission; whether it came in time."""
        if self.gate is None:
            return True
        gate, turn = self.gate, asyncio.get_running_loop().create_future()
        gate.wait(ask.urgency, ask.agent, turn, ask.share or 1.0)
        self.let_in()
        if turn.done():
            return True
        try:
            async with asyncio.timeout_at(ask.deadline):
                await turn
        except TimeoutError:
            return False
        finally:
            gate.go(ask.urgency, ask.agent, turn)
        return True

    def let_in(self) -> None:
        """Let those in whose turn it is."""
        if self.gate is not None:
            for turn in self.gate.let_in(self.admission.inside):
                if not turn.done():
                    turn.set_result(None)

    def ended(self, result: Result | None) -> None:
        """A request ended, after it has left the admission."""
        hops = () if result is None else result.hops
        if hops and hops[-1].extra.get(PRIORITIES):
            self.open_gate()
        if self.gate is not None:
            if result is not None and result.status is Status.OK:
                self.gate.window.answered(hops, len(self.gate) > 0, self.routes.clock())
            self.let_in()


def _present(placement: Placement, info: ModelInfo, first: int, stage: int) -> frozenset[str]:
    """See `ModelAdmission`."""
    stages = range(first, info.last + 1) if stage == WHOLE_PIPELINE else (stage,)
    serving = [placement.serving(info, each) for each in stages]
    return frozenset().union(*serving) if all(serving) else frozenset()
