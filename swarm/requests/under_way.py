"""A request that waits for its answer, and its model version's way to stage 1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from swarm.errors import Status, SwarmError
from swarm.fleet.placement import Placement
from swarm.flow.latency import Usual
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.requests.admission import WHOLE_PIPELINE, ModelAdmission
from swarm.requests.attempts import Outcome, Tried
from swarm.requests.request import Ask
from swarm.requests.silence import Silences
from swarm.transport.api import Sending
from swarm.transport.parcel import Parcel
from swarm.transport.routes import Routes
from swarm.transport.stage_sender import StageSender
from swarm.wire.hops import Hop
from swarm.wire.messages import Result


class ModelWay:
    """One model version: its admission, its way to stage 1, and how long its slowest stage
    takes.

    in_flight(): requests of this requester that are under way. lost_at: when nobody took a message
    for its lane last, by the routes' clock; 0.0 once the lane has taken one."""

    def __init__(self, routes: Routes, info: ModelInfo, in_flight: Callable[[], int]) -> None:
        self.lost_at = 0.0
        self.routes = routes
        self.admission = ModelAdmission(partial(_present, routes.placement, info))
        self.slowest = Usual(max((s.compute_ms / 1e3 for s in info.stages), default=0.0))
        self.sender = StageSender(routes, info, 1, self.slowest, in_flight)

    def ran(self, hops: tuple[Hop, ...]) -> None:
        """A request was answered, over these hops."""
        if hops:
            self.slowest.add(max([hop.compute_us for hop in hops]) / 1e6)


@dataclass(slots=True, eq=False)
class UnderWay:
    """A request that waits for its answer.

    reply: the subject of the answer. silences: of its model version and delivery mode. copies:
    attempts that were sent, and may still be computed. refusal: why the last attempt failed of
    which that is known. first: the first attempt's parcel, which alone may lend memory. sending:
    the last attempt. outcome: of the present wait. failed_attempts: their stages said so. is_last:
    no further attempt is made.
    """

    ask: Ask
    reply: str
    tried: Tried
    version: ModelWay
    silences: Silences
    copies: int = 0
    failed_attempts: frozenset[int] = frozenset()
    is_last: bool = False
    refusal: str = ""
    first: Parcel | None = None
    sending: Sending | None = None
    outcome: asyncio.Future[Outcome] | None = None
    is_probe: bool = False  # sent once, to see whether a lane takes it
    unheard: bool = False  # the last attempt found no lane that takes it, or no connection
    was_behind: bool = False  # a stage had older weights than asked for
    late_answer: Result | None = None  # it came when nobody waited for one

    @property
    def lives(self) -> bool:
        """Whether an attempt may still be answered."""
        return self.copies > len(self.failed_attempts)

    def failed(self, error: SwarmError) -> Result:
        """The result of a request that this error ends."""
        return self.ask.failed(error, self.tried.attempt)

    def expired(self) -> Result:
        """The result of a request whose budget is over."""
        where = (
            "the first stage, or its lane, had it"
            if self.tried.stored
            else "it could not be stored"
        )
        return Result(
            id=self.ask.id,
            model=self.ask.info.model,
            version=self.ask.info.version,
            status=Status.DEADLINE_EXCEEDED,
            message=f"no answer inside the budget ({where}, {self.tried.attempt} attempt(s)); "
            + (f"before that: {self.refusal}; " if self.refusal else "")
            + "`swarm status` shows which stages have a ready node",
            attempt=self.tried.attempt,
        )

    def free(self) -> None:
        """Free the shared memory of the request. A process that still reads it computes in vain:
        it finds the memory recycled, and fails, which nobody waits for."""
        if self.first is not None:
            self.first.released()


def _present(placement: Placement, info: ModelInfo, stage: int) -> frozenset[str]:
    """See `ModelAdmission`."""
    stages = range(1, info.last + 1) if stage == WHOLE_PIPELINE else (stage,)
    serving = [placement.serving(info, each) for each in stages]
    return frozenset().union(*serving) if all(serving) else frozenset()


async def ready_or_refused(link: Link, pause: float) -> None:
    """Wait for a connection, or for `pause` seconds where none is made: the server refuses who
    connects, which may pass."""
    try:
        await link.ready()
    except SwarmError:
        await asyncio.sleep(pause)
