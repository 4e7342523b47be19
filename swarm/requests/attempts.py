"""What a requester does next, decided from the outcome of an attempt: pure functions.

A stage that dies is not the requester's business: its lane hands the work on. Asked again is only
what no lane can know of: a request that was never stored (no stream, no connection), one that a
restarted server lost from memory, an answer that was lost, and in fast mode whatever is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from swarm.errors import (
    NoResponders,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.requests.silence import Silences
from swarm.wire.messages import Result

Outcome = Result | SwarmError | None  # of an attempt; None: no answer in good time

# An answer that is missing after this share of the budget, and after so many seconds, is probably
# lost: lanes recover from a dead node within an ack_wait, well before it.
MISSING_AFTER_SHARE = 0.4
MISSING_AFTER_LEAST = 0.25
# In fast mode nothing else recovers a request: it is asked again after a multiple of the usual p99,
# at least so many seconds, and each time that is silent too after a multiple of the time before;
# but not so late that the end of a silence goes unseen.
FAST_MISSING_AFTER_P99 = 3.0
FAST_MISSING_AFTER_LEAST = 0.010
FAST_GROWTH = 4.0
FAST_MISSING_AFTER_MOST = 0.25
# Seconds after which an attempt that may not be made yet asks once more whether it may.
ASK_LATER = 0.05
ASK_KEPT_LATER = 0.5  # where a lane, or a node, may have it still
# Seconds for which a stage that nobody serves is asked again at no cost to the retry budget: within
# them gossip knows of a death, and a fallback listens.
NOBODY_FOR = 1.0


@dataclass(slots=True)
class Tried:
    """The attempts at one request so far.

    wants_fast: the caller asked for fast mode. begun, at: when the first and the last attempt was
    made, by the clock of `now`. fast: the last attempt went in fast mode. laneless: in fast mode no
    lane took the last attempt, so the next one goes without a lane. stored: a lane, or a node, has
    the last attempt. sent: large messages that the connection had taken when it was sent. carried:
    whether the server had all of them at the last look. leaving: it had not at this look or the one
    before, so nobody had time to say more. silences: attempts in a row without an answer in good
    time.
    """

    wants_fast: bool
    begun: float
    at: float = 0.0
    attempt: int = 0
    fast: bool = False
    laneless: bool = False
    stored: bool = False
    sent: int = 0
    carried: bool = True
    leaving: bool = False
    silences: int = 0

    @property
    def unkept(self) -> bool:
        """Whether only the requester has the last attempt: no lane will bring an answer."""
        return self.wants_fast and (self.fast or not self.stored)

    def looked(self, carried: bool) -> None:
        """Whether the server has the messages of `sent` now."""
        self.leaving = not self.stored and not (carried and self.carried)
        self.carried = carried


class Do(Enum):
    END = auto()  # the outcome is the result
    WAIT = auto()  # for an answer to an earlier attempt; then decide again
    LAST_CHANCE = auto()  # no attempt is left; an earlier one may still be answered
    REPEAT = auto()  # make an attempt beside the retry budget: a silence swallowed the last one
    AGAIN = auto()  # make an attempt


class Step(NamedTuple):
    """What to do. seconds: before an attempt, or of a wait. paid: the attempt takes a retry from
    the budget. when_connected: wait for a connection first, or
    for so many seconds where it is refused."""

    do: Do
    seconds: float = 0.0
    paid: bool = False
    when_connected: bool = False


def next_step(
    outcome: Outcome,
    tried: Tried,
    silences: Silences,
    *,
    now: float,
    left: float,
    has_retry: bool,
    pause: float,
) -> Step:
    """After an attempt. left: seconds of the request's budget. has_retry: whether the retry budget
    grants one. pause: seconds between this attempt and the next, by backoff."""
    if _ends(outcome):
        return Step(Do.END)
    silent = outcome is None
    if silent and tried.leaving:
        # A copy would wait behind it, and the requests of others behind the copy.
        return Step(Do.WAIT, max(ASK_KEPT_LATER, MISSING_AFTER_SHARE * left))
    if silent and tried.unkept:
        if silences.swallowed(tried.at):
            return Step(Do.REPEAT) if silences.may_repeat() else Step(Do.WAIT, ASK_LATER)
        if not silences.may_ask(now):
            return Step(Do.WAIT, ASK_LATER)
    # To ask again for a request that nobody could take multiplies no overload.
    free = unheard(outcome) and now - tried.begun < NOBODY_FOR
    paid = not free and (tried.stored or (tried.fast and unheard(outcome)))
    if paid and not has_retry:
        if silent:  # others of the same silence have spent the retries: there are new ones soon
            return Step(Do.WAIT, ASK_LATER if tried.unkept else ASK_KEPT_LATER)
        return Step(Do.LAST_CHANCE)
    if pause >= left:
        return Step(Do.LAST_CHANCE)
    if isinstance(outcome, NotConnected):
        return Step(Do.AGAIN, pause, paid=paid, when_connected=True)
    return Step(Do.AGAIN, 0.0 if silent else pause, paid=paid)


def _ends(outcome: Outcome) -> bool:
    """Whether asking again would only fail again. A full lane ends it too: its refusal comes fast,
    and to wait is the caller's choice."""
    return outcome is not None and outcome.status is not Status.UNAVAILABLE


def goes_fast(tried: Tried, doubtful: bool) -> bool:
    """Whether the next attempt goes in fast mode. A request that was lost once goes by a lane, and
    all do while a stage may hang: lanes find the node that covers ten times as fast as gossip."""
    if not tried.wants_fast:
        return False
    return tried.laneless or (tried.attempt == 1 and not doubtful)


def no_lane_took(tried: Tried, outcome: Outcome) -> bool:
    """Whether lanes refused an attempt that need not go by lanes."""
    if not tried.wants_fast or tried.fast or isinstance(outcome, NotConnected):
        return False
    return isinstance(outcome, Unavailable | ResourceExhausted)


def missing_after(tried: Tried, left: float, p99: float, lasting: bool) -> float:
    """Seconds after which an answer is missing. left: seconds of budget. p99: the usual latency.
    lasting: several requests in a row were not answered."""
    if not tried.fast:
        after = max(MISSING_AFTER_LEAST, left * MISSING_AFTER_SHARE)
    else:
        after = max(FAST_MISSING_AFTER_LEAST, FAST_MISSING_AFTER_P99 * p99)
        if lasting:
            grown = after * FAST_GROWTH ** min(tried.silences, 10)
            after = max(after, min(FAST_MISSING_AFTER_MOST, grown))
    return min(after, left)


def counts(result: Result, tried: Tried, silences: Silences) -> bool:
    """Whether an answer ends the present wait: an attempt that is over may have failed where the
    present one does better."""
    earlier = result.attempt < tried.attempt
    if result.status is Status.UNAVAILABLE and earlier:
        return False
    if result.status is Status.RESOURCE_EXHAUSTED and tried.wants_fast:
        return not (earlier or silences.swallowed(tried.at))
    return True


def is_unusual(tried: Tried, hedged: bool, result: Result | None, took: float) -> bool:
    """Whether the latency of a request in fast mode says nothing of others: an attempt was lost, or
    may have been, and later attempts of all requests would wait as long as it did. A request that
    was only slow is learned from. took: seconds."""
    if not tried.wants_fast or hedged or result is None:
        return False
    if tried.attempt == 1:
        return not tried.fast
    spent = sum([hop.queue_us + hop.compute_us for hop in result.hops]) / 1e6
    return result.attempt > 1 or took > 2 * spent


def unheard(outcome: Outcome) -> bool:
    """Whether nobody listened: in the first stage, or in a later one, which has no node then."""
    if isinstance(outcome, Result):
        return outcome.stage > 0 and not outcome.node
    return isinstance(outcome, NoResponders)


def is_behind(outcome: Outcome) -> bool:
    """Whether a stage only had older weights than asked for: it worked, as its own hop shows, and
    its failure says nothing of other requests."""
    if not isinstance(outcome, Result) or outcome.status is not Status.UNAVAILABLE:
        return False
    return bool(outcome.stage and outcome.hops and outcome.hops[-1].stage == outcome.stage)


def is_ok(outcome: Outcome) -> bool:
    """Whether there is a result, and it is no failure."""
    return isinstance(outcome, Result) and outcome.status is Status.OK
