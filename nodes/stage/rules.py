"""What becomes of a message at a stage: two tables of pure decisions.

`BEFORE_RUN` is asked when a request is about to be computed. `SENT` is asked at each event of its
result on the way to the next stage, `NOT_SENT`, its end, where an answer cannot be sent. The page
(`swarm/requests/README.md`) shows the tables.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from swarm.errors import (
    NoLeader,
    NoResponders,
    NotConnected,
    ResourceExhausted,
    SwarmError,
    Unavailable,
)
from swarm.flow.rules import DecisionRule
from swarm.transport.api import Acked, Event, InFlight, Published, Refused, Stored
from swarm.transport.lane import NotStored

# Seconds between attempts while the next lane is full, and results that wait for room in it, from
# which on each waits longer.
RETRY_FULL_LANE = 0.004
MANY_BLOCKED = 8
RETRY_LANE_AWAY = 0.1  # seconds between attempts while no server keeps the next lane
HAND_BACK_DELAY = 0.05  # seconds, for a message whose work failed by a defect or a lost answer


class StartMove(Enum):
    """What to do with a request that is about to be computed."""

    RUN = auto()
    MEASURE = auto()  # its age in the lane, and then decide again
    REFUSE = auto()
    EXPIRE = auto()


class Ready(NamedTuple):
    """A request that is about to be computed. All are seconds. left: of its budget. usual: of a
    run. age: in its lane, as far as is known; counted: that part of it which counts against the
    budget is in `left`. owed: until its client may have another run."""

    left: float
    usual: float
    age: float
    counted: bool
    owed: float


BEFORE_RUN: tuple[DecisionRule[Ready, StartMove], ...] = (
    DecisionRule(
        "runs for its client had to be ended, and have taken a tenth of the stage's time",
        lambda s: s.owed > 0,
        "answers `RESOURCE_EXHAUSTED`",
        lambda s: StartMove.REFUSE,
    ),
    DecisionRule(
        "the rest of its time is over, or shorter than a run",
        lambda s: s.left <= 0 or s.left < s.usual,
        "answers `DEADLINE_EXCEEDED`, and where most of the time was spent",
        lambda s: StartMove.EXPIRE,
    ),
    DecisionRule(
        "the same, if it has lain in its lane for as long as an older reading of the server's "
        "clock says",
        lambda s: not s.counted and s.left - s.age <= s.usual,
        "reads the server's clock, and decides again",
        lambda s: StartMove.MEASURE,
    ),
    DecisionRule("else", lambda s: True, "computes it", lambda s: StartMove.RUN),
)


class After(Enum):
    """What to do with a message when something is known of its result."""

    NOTHING = auto()
    KEEP = auto()  # until more is known
    ACK = auto()
    STORE_AGAIN = auto()
    WITHDRAW = auto()
    HAND_BACK = auto()
    ANSWER = auto()


class Onward(NamedTuple):
    """An event of a result on its way. over: its message has ended here. fast: in fast mode. left:
    seconds of the request's budget. blocked: results of this stage that wait for the next lane."""

    event: Event
    over: bool
    fast: bool
    left: float
    blocked: int = 0

    @property
    def pause(self) -> float:
        """Seconds until the next attempt at a full lane."""
        return RETRY_FULL_LANE * (1 + self.blocked // MANY_BLOCKED)

    @property
    def is_full(self) -> bool:
        """Whether the next lane is."""
        return _is_refused(self.event, ResourceExhausted)

    @property
    def is_away(self) -> bool:
        """Whether the next lane takes nothing at present, and there is time to wait: a cluster
        elects a leader, a node makes the lane anew, or its server refuses or is silent. If the
        message were given back, it would be computed again and again meanwhile, and look like one
        that kills its nodes."""
        away = _is_refused(self.event, NoResponders, NoLeader, NotStored)
        return away and not self.fast and self.left > RETRY_LANE_AWAY


class StageMove(NamedTuple):
    """What to do, after so many seconds. passed_on: see `Delivery.ack`."""

    do: After
    seconds: float = 0.0
    passed_on: bool = False


def _is_refused(event: Event, *reasons: type[SwarmError]) -> bool:
    return isinstance(event, Refused) and isinstance(event.error, reasons)


NOT_SENT: tuple[DecisionRule[Onward, StageMove], ...] = (
    DecisionRule(
        "there is no connection",
        lambda s: _is_refused(s.event, NotConnected),
        "leaves it to its lane, which hands it out again; one that was handed over goes back to "
        "its sender",
        lambda s: StageMove(After.WITHDRAW),
    ),
    DecisionRule(
        "`UNAVAILABLE`, and more than 0.1 s of its time is left",
        lambda s: _is_refused(s.event, Unavailable) and s.left > RETRY_LANE_AWAY,
        "gives it back to its lane, which hands it out again after 50 ms",
        lambda s: StageMove(After.HAND_BACK, HAND_BACK_DELAY),
    ),
    DecisionRule(
        "the result could not be sent for another reason",
        lambda s: True,
        "answers with that failure",
        lambda s: StageMove(After.ANSWER),
    ),
)

SENT: tuple[DecisionRule[Onward, StageMove], ...] = (
    DecisionRule(
        "its message has ended here: a late process was done with it while it was stored again",
        lambda s: s.over,
        "nothing",
        lambda s: StageMove(After.NOTHING),
    ),
    DecisionRule(
        "the next process has the result",
        lambda s: isinstance(s.event, InFlight),
        "keeps the message, which counts against the lane's credit no more",
        lambda s: StageMove(After.KEEP),
    ),
    DecisionRule(
        "the next process says that it is done, or has passed it on",
        lambda s: isinstance(s.event, Acked),
        "acks the message",
        lambda s: StageMove(After.ACK, passed_on=isinstance(s.event, Acked) and s.event.passed_on),
    ),
    DecisionRule(
        "the next lane has the result; in fast mode: it is on its way",
        lambda s: isinstance(s.event, Stored | Published),
        "acks the message",
        lambda s: StageMove(After.ACK, passed_on=isinstance(s.event, Stored)),
    ),
    DecisionRule(
        "the next lane is full, and there is time for another attempt",
        lambda s: s.is_full and s.left > s.pause,
        "keeps the result, and stores it after 4 ms, or later where many wait: the lane of this "
        "stage fills up in turn, up to the requester, who is refused at once",
        lambda s: StageMove(After.STORE_AGAIN, s.pause),
    ),
    DecisionRule(
        "the next lane is full",
        lambda s: s.is_full,
        "answers `RESOURCE_EXHAUSTED`",
        lambda s: StageMove(After.ANSWER, s.pause),
    ),
    DecisionRule(
        "nobody keeps the next lane at present, and more than 0.1 s of its time is left",
        lambda s: s.is_away,
        "keeps the result, and stores it after 0.1 s",
        lambda s: StageMove(After.STORE_AGAIN, RETRY_LANE_AWAY),
    ),
    *NOT_SENT,
)
