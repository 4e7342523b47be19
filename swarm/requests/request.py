"""One request as its requester sees it: what to ask, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import numpy as np

from swarm.errors import InvalidArgument, Status, SwarmError, error_for, retry_after_of
from swarm.ids import ulid
from swarm.model import ModelInfo
from swarm.wire.messages import Result
from swarm.wire.urgency import NORMAL

MAX_BUDGET = 600.0  # seconds
DURABLE = "durable"
FAST = "fast"
DELIVERY_MODES = {DURABLE: DURABLE, FAST: FAST, "core": FAST}  # "core": its name in version 0.1


@dataclass(slots=True)
class Ask:
    """What is asked, of which model version, until when.

    deadline: the loop's time, seconds. delivery: `DURABLE` (lanes) or `FAST` (nothing is stored;
    the requester's retries only). hedge: percentile (0..1) of the usual latency after which a
    second copy is sent, or None. weights: the least weight version of the answer, 0 for any; of a
    session, besides, no lower one than it has seen. shadow: a copy of a request, the first to be
    dropped under load. hops: of stages that ran before it was sent (the edge's), as maps.
    tried_until: the loop's time, after which it is asked no more where no lane takes it: somebody
    else could answer. stage: at which it enters; the requester has run those before it.
    urgency: its priority (`swarm.wire.urgency`). share: as of `Request`.
    instead, refer: as of `Features`.
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
    weights: int = 0
    shadow: bool = False
    tried_until: float = inf
    stage: int = 1
    urgency: int = NORMAL
    share: float = 0.0
    instead: str = ""
    refer: tuple[str, ...] = ()

    def failed(self, error: SwarmError, attempt: int = 0) -> Result:
        """The result of a request that this error ends; attempt 0: before it was sent."""
        return Result(
            id=self.id,
            model=self.info.model,
            version=self.info.version,
            status=error.status,
            message=str(error),
            attempt=attempt,
            retry_after=retry_after_of(error),
        )


class Picker(Protocol):
    """A routing policy as a requester sees it."""

    def pick_lane(self, ask: Ask, remaining: float) -> str:
        """The lane of its stage for this attempt; `remaining` seconds of budget are left."""
        ...

    def ended(self, ask: Ask, ok: bool) -> None:
        """The request ended."""
        ...


def check_budget(budget: float) -> None:
    """Raises `InvalidArgument` for more seconds than are given, and for what is no number."""
    if not budget <= MAX_BUDGET:  # nan neither
        raise InvalidArgument(f"a budget of {budget} s: at most {MAX_BUDGET:.0f} s are given")


def answered(result: Result) -> Result:
    """The result of a request that was answered. Raises the error of another one's status, which
    says where the request ended."""
    if result.status is Status.OK:
        return result
    where = f" (stage {result.stage}, node {result.node})" if result.node else ""
    raise error_for(result.status, result.message + where, result.retry_after)


def refused(request_id: str, model: str, error: BaseException) -> Result:
    """The result of a request that this error ends before a node has it. model: `NAME` or
    `NAME@VERSION`."""
    status, text = Status.DEADLINE_EXCEEDED, "the budget ended before the mesh answered"
    if isinstance(error, SwarmError):
        status, text = error.status, str(error)
    result = Result(request_id or ulid(), model.partition("@")[0], status=status, message=text)
    result.retry_after = retry_after_of(error)
    return result
