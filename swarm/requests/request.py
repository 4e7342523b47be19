"""One request on its way: what to send, what has come of it, and how its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from swarm.errors import (
    NoResponders,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.ids import ulid
from swarm.local.lending import NO_LOAN, Loan
from swarm.model import ModelInfo
from swarm.wire.hops import Hop
from swarm.wire.messages import Result
from swarm.wire.tensors import Part

CORE = "core"
DURABLE = "durable"

Outcome = Result | SwarmError | None  # of an attempt; None: no answer in good time


@dataclass(slots=True)
class Ask:
    """One request on its way: what to send, and what has come of it.

    delivery: `durable` (lanes) or `core` (fast mode: no store, the requester's retries only).
    hedge: percentile (0..1) of the usual latency after which a second copy is sent, or None.
    """

    info: ModelInfo
    tensors: Mapping[str, np.ndarray]
    deadline: float  # loop time, seconds
    delivery: str = DURABLE
    hedge: float | None = None
    id: str = field(default_factory=ulid)
    agent: str = ""
    session: str = ""
    sequence: int = 0
    traceparent: str = ""
    begun: float = 0.0  # time.monotonic()
    attempt: int = 0
    tried: float = 0.0  # time.monotonic() of the last attempt
    fresh: bool = False  # the last attempt went in fast mode
    laneless: bool = False  # in fast mode: no lane took it, so not by a lane next time
    sent: int = 0  # copies that were published
    stored: bool = False
    silences: int = 0  # attempts in a row without an answer in good time
    refusal: str = ""  # what the last attempt that was told why failed with
    hops: list[dict[str, object]] = field(default_factory=list)
    lent: Loan = NO_LOAN  # for the last attempt
    handed: Handing | None = None  # the first attempt, to a node of this host
    outcome: asyncio.Future[Outcome] | None = None
    answer: Result | None = None  # that came when nobody waited for one

    def settle(self, outcome: Outcome) -> None:
        """The present attempt came to this. The first word counts; where that does not end the
        request, an answer behind it does."""
        if self.outcome is None or self.outcome.cancelled():
            return
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        elif isinstance(outcome, Result) and outcome.status is Status.OK:
            before = self.outcome.result()
            if not isinstance(before, Result) or before.status is Status.UNAVAILABLE:
                self.answer = outcome

    @property
    def unkept(self) -> bool:
        """Whether nobody but the requester has the last attempt."""
        return self.delivery == CORE and (self.fresh or not self.stored)

    def laneless_by(self, outcome: Outcome) -> bool:
        """Whether no lane took an attempt that need not go by lanes; the next one does not."""
        if self.delivery != CORE or self.fresh or isinstance(outcome, NotConnected):
            return False
        turned_down = isinstance(outcome, Unavailable | ResourceExhausted)
        self.laneless |= turned_down
        return turned_down

    def failed(self, error: SwarmError) -> Result:
        """The result of a request that this error ends."""
        return Result(
            id=self.id,
            model=self.info.model,
            version=self.info.version,
            status=error.status,
            message=str(error),
            attempt=self.attempt,
            retry_after=error.retry_after if isinstance(error, ResourceExhausted) else 0.0,
        )

    def expired(self) -> Result:
        """The result of a request whose budget is over."""
        where = "the first stage, or its lane, had it" if self.stored else "it could not be stored"
        return Result(
            id=self.id,
            model=self.info.model,
            version=self.info.version,
            status=Status.DEADLINE_EXCEEDED,
            message=f"no answer inside the budget ({where}, {self.attempt} attempt(s)); "
            + (f"before that: {self.refusal}; " if self.refusal else "")
            + "`swarm status` shows which stages have a ready node",
            attempt=self.attempt,
        )


class Handing(Protocol):
    """What keeps a request that a node of this host has (`swarm.requests.outgoing.FirstLeg`)."""

    def told(self, reply: str, word: Part) -> None:
        """What the node says that has it."""
        ...

    def ran(self, reply: str, hops: tuple[Hop, ...]) -> None:
        """It was answered, over these hops."""
        ...

    def drop(self, reply: str) -> None:
        """Nobody waits for it any more."""
        ...


class Picker(Protocol):
    """A routing policy as a requester sees it."""

    def pick_lane(self, ask: Ask, remaining: float) -> str:
        """The lane of stage 1 for this attempt; `remaining` seconds of budget are left."""
        ...

    def ended(self, ask: Ask, ok: bool) -> None:
        """The request ended."""
        ...


def unheard(outcome: Outcome) -> bool:
    """Whether nobody listened: in the first stage, or in a later one, which has no node then."""
    if isinstance(outcome, Result):
        return outcome.stage > 0 and not outcome.node
    return isinstance(outcome, NoResponders)


def ended(outcome: Outcome, status: Status = Status.OK) -> bool:
    """Whether there is a result, and it has that status."""
    return isinstance(outcome, Result) and outcome.status is status
