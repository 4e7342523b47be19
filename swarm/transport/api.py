"""The one seam for every way that a message can travel: Sender and Source, Parcel and Delivery.

A stage takes each `Delivery` from its `StageSource`, and gives each result to a `StageSender` as a
`Parcel`. A requester gives its requests to the same kind of sender. Neither knows sockets, shared
memory, fast mode, or which process is on which host.

    Parcel ─► Sender ─┬─ handed over to a process of this host ─┐
                      ├─ the lane (JetStream) ──────────────────┼─► Source ─► Delivery
                      └─ the fast queue (core NATS) ────────────┘

A Sender says by events what became of a parcel:

    send ─┬─► InFlight ─┬─► Acked
          │             ├─► Stored          the next one is late, refused it, or has ended
          │             └─► Refused
          ├─► Stored
          ├─► Published
          └─► Refused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

import numpy as np

from swarm.errors import Status, SwarmError
from swarm.wire.hops import Hop
from swarm.wire.messages import Features
from swarm.wire.tensors import Part


@dataclass(frozen=True, slots=True)
class InFlight:
    """The next one has the parcel; its sender keeps it until `Acked` or `Stored`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The lane has the parcel. late: another copy is with a process that was not done in time."""

    late: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    """Nobody here needs to keep the parcel. passed_on: a later lane has the work that came of it;
    else the requester has its answer."""

    passed_on: bool


@dataclass(frozen=True, slots=True)
class Published:
    """Fast mode: the parcel is on its way, and only the requester keeps it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The parcel is with its sender again, perhaps after `InFlight`. late: it could not be stored,
    and the process that was not done in time has it still.

    may_be_stored: nobody knows whether the lane has it, so its shared memory stays lent.

    error: `NotConnected`, `ResourceExhausted` (a full lane), `Unavailable` (no lane, no answer of
    the server), `NoResponders` (fast mode: nobody serves the stage), `InvalidArgument` (a tensor
    that has no form on the wire)."""

    error: SwarmError
    late: bool = False
    may_be_stored: bool = False


Event = InFlight | Stored | Acked | Published | Refused
OnEvent = Callable[[Event], None]

IN_FLIGHT, PUBLISHED = InFlight(), Published()


class Sending(Protocol):
    """A parcel under way. Each method may be called at any time, and often."""

    def on_ack(self, verb: Part) -> None:
        """The process that has the parcel acknowledges it (`swarm.transport.handover.acks`) on the
        parcel's own reply subject (a requester's)."""
        ...

    def on_no_responders(self) -> None:
        """The server says that nobody listens, where it says so to the parcel's own reply subject
        (fast mode, a requester's)."""
        ...

    def answered(self, hops: tuple[Hop, ...]) -> None:
        """The request was answered, over these hops: nothing needs to be kept for it."""
        ...

    def drop(self) -> None:
        """Nobody waits for this try any more: no event comes."""
        ...


class Admission(Enum):
    """How a stage answers the question whether more may come from this host."""

    REFUSED = auto()
    BEHIND_LANES = auto()  # yes, when the lanes' waiting messages have been asked for first
    ADMITTED = auto()


class Backlog(NamedTuple):
    """A stage's work that has not begun. waiting: requests that wait there for a run. run: usual
    seconds of a run. closed: the stage ends, or counts requests against quotas, which lanes do."""

    waiting: int
    run: float
    closed: bool


class Delivery(Protocol):
    """A message as it came, and the ways to end its work here. Exactly one of `ack`,
    `hand_back`, `withdraw`, and `dead_letter` ends it; a later one does nothing."""

    features: Features  # tensors are arrays, readable until the delivery ends
    fast: bool  # it came in fast mode: nobody stores it
    received: int  # `time.monotonic_ns()`
    times_delivered: int  # 1 the first time

    @property
    def age(self) -> float:
        """Seconds on the way, and in the lane, as far as is known."""
        ...

    @property
    def least_age(self) -> float | None:
        """Seconds that it was on the way at the least. Only these count against its budget. None
        while they are not known."""
        ...

    def measure_age(self, then: Callable[[], None] | None = None) -> None:
        """Make `least_age` known; then() is called when it is, or cannot be known."""
        ...

    @property
    def ended(self) -> bool:
        """Whether its work has ended here, or is another node's by now."""
        ...

    def intact(self) -> bool:
        """Whether its tensors in shared memory are still those that were sent."""
        ...

    def release_credit(self) -> None:
        """It waits for the next stage's ack of the result, or for newer weights. During that wait
        it takes none of the lane's credit."""
        ...

    def take_credit(self) -> None:
        """The next stage does not have the result after all: the work goes on here."""
        ...

    def ack(self, passed_on: bool) -> bool:
        """The work is done and safe. passed_on: a later lane has the result. False while a copy of
        the message may still come, here or elsewhere, and will need its shared memory."""
        ...

    def answer(
        self,
        outputs: dict[str, np.ndarray],
        urgent: bool,
        then: Callable[[SwarmError | None], None],
    ) -> None:
        """Send the result to the requester; `then(error)` is called when it has left, or could not
        leave. urgent: send it before the acknowledgement that follows."""
        ...

    def fail(
        self, status: Status, text: str, stage: int, node: str, retry_after: float = 0.0
    ) -> bool:
        """Send a failure to the requester, and end. retry_after: seconds after which it may ask
        again, 0.0 where nobody knows. False: a copy of the message may still come."""
        ...

    def hand_back(self, delay: float = 0.0) -> None:
        """Another node, or this one later, is to do the work; after `delay` seconds."""
        ...

    def withdraw(self) -> bool:
        """End, if another copy of the message will come by itself; whether it will."""
        ...

    def drop(self) -> None:
        """Nobody waits for the result: end without an answer."""
        ...

    def dead_letter(self, reason: str) -> None:
        """No node can do the work: a dead letter with the reason."""
        ...
