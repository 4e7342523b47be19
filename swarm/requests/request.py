"""One request as its requester sees it: what to ask, and what has come of it so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from swarm.errors import ResourceExhausted, Status, SwarmError
from swarm.ids import ulid
from swarm.model import ModelInfo
from swarm.requests.attempts import Outcome, Tried
from swarm.transport.api import Sending
from swarm.transport.parcel import Parcel
from swarm.wire.messages import Result

DURABLE = "durable"
FAST = "fast"
DELIVERY_MODES = {DURABLE: DURABLE, FAST: FAST, "core": FAST}  # "core": its name in version 0.1


@dataclass(slots=True)
class Ask:
    """What is asked, of which model version, until when.

    deadline: the loop's time, seconds. delivery: `DURABLE` (lanes) or `FAST` (nothing is stored;
    the requester's retries only). hedge: percentile (0..1) of the usual latency after which a
    second copy is sent, or None. hops: of stages that ran before it was sent (the edge's), as maps.
    """

    info: ModelInfo
    tensors: Mapping[str, np.ndarray]
    deadline: float
    delivery: str = DURABLE
    hedge: float | None = None
    id: str = field(default_factory=ulid)
    agent: str = ""
    session: str = ""
    sequence: int = 0
    traceparent: str = ""
    hops: list[dict[str, Any]] = field(default_factory=list)

    def failed(self, error: SwarmError, attempt: int = 1) -> Result:
        """The result of a request that this error ends."""
        return Result(
            id=self.id,
            model=self.info.model,
            version=self.info.version,
            status=error.status,
            message=str(error),
            attempt=attempt,
            retry_after=error.retry_after if isinstance(error, ResourceExhausted) else 0.0,
        )


@dataclass(slots=True, eq=False)
class UnderWay:
    """A request that waits for its answer.

    reply: the subject of the answer. copies: attempts that were sent, and may still be computed.
    refusal: why the last attempt failed of which that is known. first: the first attempt's parcel,
    which alone may lend memory. sending: the last attempt. outcome: of the present wait.
    """

    ask: Ask
    reply: str
    tried: Tried
    copies: int = 0
    refusal: str = ""
    first: Parcel | None = None
    sending: Sending | None = None
    outcome: asyncio.Future[Outcome] | None = None
    late_answer: Result | None = None  # it came when nobody waited for one

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


class Picker(Protocol):
    """A routing policy as a requester sees it."""

    def pick_lane(self, ask: Ask, remaining: float) -> str:
        """The lane of stage 1 for this attempt; `remaining` seconds of budget are left."""
        ...

    def ended(self, ask: Ask, ok: bool) -> None:
        """The request ended."""
        ...
