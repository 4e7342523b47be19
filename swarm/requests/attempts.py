"""What a requester does when an attempt ends without the answer: a table of pure decisions.

The requester does nothing when a stage dies: the stage's lane hands the work on. It asks again only
for what no lane can know of: a request that was never stored (no stream, no connection), one that a
restarted server lost from memory, an answer that was lost, and in fast mode whatever is lost.

`RULES` is the table, which the page (`swarm/requests/README.md`) shows: of all rules, the first one
that holds decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from swarm.errors import (
    LinkEnded,
    NoResponders,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.flow.rules import DecisionRule
from swarm.requests.silence import Silences
from swarm.wire.messages import Result

Outcome = Result | SwarmError | None  # of an attempt; None: no answer in good time


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """When a request is asked again. All times are seconds."""

    missing_after_share: float = 0.4
    """Share of the budget after which an answer is probably lost: lanes recover from a dead node
    within an ack_wait, well before it."""

    missing_after: float = 0.25
    """Least time after which an answer is probably lost."""

    fast_missing_after_p99: float = 3.0
    """In fast mode nothing else recovers a request: it is asked again after so many times the usual
    p99."""

    fast_missing_after: float = 0.010
    """Least time after which an answer is missing in fast mode."""

    fast_growth: float = 4.0
    """Factor by which each attempt in a row that is unanswered too makes that time longer."""

    fast_missing_after_most: float = 0.25
    """Longest time by that growth: the end of a silence must not go unseen."""

    ask_later: float = 0.05
    """Time after which an attempt that may not be made yet asks once more whether it may."""

    ask_stored_later: float = 0.5
    """The same where a lane, or a node, may have the request still."""

    unserved_for: float = 1.0
    """Time for which asking a stage that nobody serves costs no retry: by its end, gossip knows of
    the death and a fallback listens."""

    pause: float = 0.005
    """First pause between two attempts; each is twice as long as the last one, with full jitter."""

    longest_pause: float = 0.1
    """Longest pause between two attempts."""

    retries_per_request: float = 0.1
    """Retries that each request adds to the retry budget."""

    retries_per_second: float = 5.0
    """Retries granted whatever the traffic."""

    hedges_per_request: float = 0.05
    """Hedges that each request with one adds to their budget: the most extra load."""


DEFAULTS = AttemptConfig()


@dataclass(slots=True)
class Attempts:
    """The attempts at one request so far.

    wants_fast: the caller asked for fast mode. begun, at: when the first and the last attempt was
    made, by the clock of `now`. number: of the last attempt. hedge: of its second copy, 0 without
    one. fast: the last attempt went in fast mode. laneless: in fast mode no lane took the last
    attempt, so the next one goes without a lane. stored: a lane, or a node, has the last attempt.
    sent: how many large messages the connection had taken by the time that the last attempt was
    sent. carried: whether the server had all of these messages when the requester last looked.
    leaving: the last attempt may still be on its way to the server, since these messages were on
    theirs when the requester last looked or the time before. unanswered: attempts in a row without
    an answer in good time. refused: when the attempt that ended last was answered with
    `UNAVAILABLE`. lost: one ended without an answer, or was not sent.
    """

    wants_fast: bool
    begun: float
    at: float = 0.0
    number: int = 0
    hedge: int = 0
    fast: bool = False
    laneless: bool = False
    stored: bool = False
    sent: int = 0
    carried: bool = True
    leaving: bool = False
    unanswered: int = 0
    refused: float = 0.0
    lost: bool = False

    @property
    def last(self) -> int:
        """The number of the copy that was sent last."""
        return self.hedge or self.number

    @property
    def needs_requester(self) -> bool:
        """Whether only the requester recovers the last attempt: no lane will bring an answer."""
        return self.wants_fast and (self.fast or not self.stored)

    def begin(self, now: float) -> None:
        """One more attempt is made."""
        self.number, self.hedge, self.at = self.last + 1, 0, now

    def ended(self, outcome: Outcome, now: float) -> None:
        """The last attempt has come to this; not to a result of the request."""
        self.refused = now
        self.lost = self.lost or not isinstance(outcome, Result | NoResponders)

    def was_refused(self, now: float) -> bool:
        """Whether each attempt that has ended was answered, and the last of these answers is no
        older than half of the time since the first attempt."""
        return not self.lost and now - self.refused <= self.refused - self.begun

    def looked(self, carried: bool) -> None:
        """The requester has looked whether the server has the messages of `sent`."""
        self.leaving = not self.stored and not (carried and self.carried)
        self.carried = carried


class AttemptAction(Enum):
    END = auto()  # the outcome is the result
    WAIT = auto()  # for an answer to an earlier attempt; then decide again
    LAST_CHANCE = auto()  # no attempt is left; an earlier one may still be answered
    REPEAT = auto()  # make an attempt beside the retry budget: a silence swallowed the last one
    AGAIN = auto()  # make an attempt


class AttemptStep(NamedTuple):
    """What to do. seconds: before an attempt, or of a wait. paid: the attempt takes a retry from
    the budget. when_connected: wait for a connection first, or for so many seconds where it is
    refused."""

    do: AttemptAction
    seconds: float = 0.0
    paid: bool = False
    when_connected: bool = False


@dataclass(frozen=True, slots=True)
class AttemptSituation:
    """An attempt has ended with `outcome`. remaining: seconds of the request's budget. has_retry:
    whether the retry budget grants one. pause: seconds between this attempt and the next, by
    backoff."""

    outcome: Outcome
    attempts: Attempts
    silences: Silences
    now: float
    remaining: float
    has_retry: bool
    pause: float
    config: AttemptConfig = DEFAULTS

    @property
    def is_decided(self) -> bool:
        """Whether asking again would only fail again. A full lane's refusal counts too: it comes
        fast, and waiting is the caller's choice."""
        outcome = self.outcome
        if outcome is None:
            return False
        return isinstance(outcome, LinkEnded) or outcome.status is not Status.UNAVAILABLE

    @property
    def is_silent(self) -> bool:
        """Whether no answer came in good time."""
        return self.outcome is None

    @property
    def is_swallowed(self) -> bool:
        """Whether a silence that is over has swallowed an attempt that no lane keeps."""
        attempts = self.attempts
        lost = self.is_silent and attempts.needs_requester
        return lost and self.silences.swallowed(attempts.at)

    @property
    def must_wait_its_turn(self) -> bool:
        """Whether so many attempts that no lane keeps are unanswered that few may ask again."""
        lost = self.is_silent and self.attempts.needs_requester
        return lost and not self.silences.may_ask(self.now)

    @property
    def is_paid(self) -> bool:
        """Whether the next attempt takes a retry from the budget. It does where a node may compute
        it beside the last one. Where nobody could take the request, asking again adds no load."""
        unserved, attempts = is_unserved(self.outcome), self.attempts
        if unserved and self.now - attempts.begun < self.config.unserved_for:
            return False
        return attempts.stored or (attempts.fast and unserved)

    @property
    def later(self) -> float:
        """Seconds until a silent request asks once more whether it may be sent again."""
        needs = self.attempts.needs_requester
        return self.config.ask_later if needs else self.config.ask_stored_later


RULES: tuple[DecisionRule[AttemptSituation, AttemptStep], ...] = (
    DecisionRule(
        "an answer, or a failure with any other status than `UNAVAILABLE`",
        lambda s: s.is_decided,
        "it is the result",
        lambda s: AttemptStep(AttemptAction.END),
    ),
    DecisionRule(
        "silence, and this machine has not yet sent all of the attempt to the server",
        lambda s: s.is_silent and s.attempts.leaving,
        "waits 0.4 of the rest of its time, at least 0.5 s: a copy would queue behind the attempt, "
        "and other requests would queue behind the copy",
        lambda s: AttemptStep(
            AttemptAction.WAIT,
            max(s.config.ask_stored_later, s.config.missing_after_share * s.remaining),
        ),
    ),
    DecisionRule(
        "silence; no lane keeps the attempt; a silence of three or more attempts in a row has "
        "ended since it was sent; fewer requests repeat at present than may (1, and one more with "
        "each answer, up to 16)",
        lambda s: s.is_swallowed and s.silences.may_repeat(),
        "sends it again, and takes no retry for it: the node that hung has not computed it",
        lambda s: AttemptStep(AttemptAction.REPEAT),
    ),
    DecisionRule(
        "as in rule 3, and as many requests repeat at present as may",
        lambda s: s.is_swallowed,
        "waits 50 ms",
        lambda s: AttemptStep(AttemptAction.WAIT, s.config.ask_later),
    ),
    DecisionRule(
        "silence; no lane keeps the attempt; eight attempts of this model in a row are unanswered, "
        "and another request has asked again within 50 ms",
        lambda s: s.must_wait_its_turn,
        "waits 50 ms",
        lambda s: AttemptStep(AttemptAction.WAIT, s.config.ask_later),
    ),
    DecisionRule(
        "silence; a lane or a node may have the attempt; no retry is left",
        lambda s: s.is_silent and s.is_paid and not s.has_retry,
        "waits 0.5 s, or 50 ms where no lane keeps the attempt",
        lambda s: AttemptStep(AttemptAction.WAIT, s.later),
    ),
    DecisionRule(
        "`UNAVAILABLE`; a lane or a node may have the attempt; no retry is left",
        lambda s: s.is_paid and not s.has_retry,
        "sends no more, and waits for the attempts that may still be answered",
        lambda s: AttemptStep(AttemptAction.LAST_CHANCE),
    ),
    DecisionRule(
        "the pause before the next attempt would be longer than the rest of its time",
        lambda s: s.pause >= s.remaining,
        "sends no more, and waits for the attempts that may still be answered",
        lambda s: AttemptStep(AttemptAction.LAST_CHANCE),
    ),
    DecisionRule(
        "there is no connection",
        lambda s: isinstance(s.outcome, NotConnected),
        "sends it again when there is one",
        lambda s: AttemptStep(AttemptAction.AGAIN, s.pause, paid=s.is_paid, when_connected=True),
    ),
    DecisionRule(
        "silence",
        lambda s: s.is_silent,
        "sends it again, at once",
        lambda s: AttemptStep(AttemptAction.AGAIN, 0.0, paid=s.is_paid),
    ),
    DecisionRule(
        "`UNAVAILABLE`",
        lambda s: True,
        "sends it again after a pause of 5 ms, doubled up to 100 ms, with full jitter",
        lambda s: AttemptStep(AttemptAction.AGAIN, s.pause, paid=s.is_paid),
    ),
)


@dataclass(frozen=True, slots=True)
class AttemptsOver:
    """The budget of a request is over, and it has no result."""

    attempts: Attempts
    now: float


AT_THE_END: tuple[DecisionRule[AttemptsOver, Status], ...] = (
    DecisionRule(
        "each attempt that ended was answered with `UNAVAILABLE`, the last one after half of the "
        "time or later",
        lambda over: over.attempts.was_refused(over.now),
        "gets the last of these failures: it does not depend on whether the time ends in an "
        "attempt or in the pause before it",
        lambda over: Status.UNAVAILABLE,
    ),
    DecisionRule(
        "else",
        lambda over: True,
        "gets `DEADLINE_EXCEEDED`, with the number of attempts, the last refusal, and whether a "
        "lane had the request",
        lambda over: Status.DEADLINE_EXCEEDED,
    ),
)


def goes_fast(attempts: Attempts, doubtful: bool) -> bool:
    """Whether the next attempt goes in fast mode. A request that was lost once goes by a lane. So
    do all requests while a stage may hang: a lane reaches the covering node ten times as fast as
    gossip."""
    if not attempts.wants_fast:
        return False
    return attempts.laneless or (attempts.number == 1 and not doubtful)


def no_lane_took(attempts: Attempts, outcome: Outcome) -> bool:
    """Whether lanes refused an attempt that need not go by lanes."""
    if not attempts.wants_fast or attempts.fast or isinstance(outcome, NotConnected):
        return False
    return isinstance(outcome, Unavailable | ResourceExhausted)


def missing_after(
    attempts: Attempts,
    remaining: float,
    p99: float = 0.0,
    lasting: bool = False,
    config: AttemptConfig = DEFAULTS,
) -> float:
    """Seconds after which an answer is missing. remaining: seconds of budget. In fast mode, p99:
    the usual latency; lasting: several requests in a row were not answered."""
    if not attempts.fast:
        after = max(config.missing_after, remaining * config.missing_after_share)
    else:
        after = max(config.fast_missing_after, config.fast_missing_after_p99 * p99)
        if lasting:
            grown = after * config.fast_growth ** min(attempts.unanswered, 10)
            after = max(after, min(config.fast_missing_after_most, grown))
    return min(after, remaining)


def ends_wait(result: Result, attempts: Attempts, silences: Silences) -> bool:
    """Whether an answer ends the present wait: an attempt that is over may have failed where the
    present one does better."""
    earlier = result.attempt < attempts.last
    if result.status is Status.UNAVAILABLE and earlier:
        return False
    if result.status is Status.RESOURCE_EXHAUSTED and attempts.wants_fast:
        return not (earlier or silences.swallowed(attempts.at))
    return True


def is_unusual(attempts: Attempts, hedged: bool, result: Result | None, seconds: float) -> bool:
    """Whether the latency of a request in fast mode is left out of the usual ones, since an attempt
    was lost, or may have been. If it counted, all requests would wait as long before their next
    attempts. The latency of a request that was only slow counts."""
    if not attempts.wants_fast or hedged or result is None:
        return False
    if attempts.number == 1:
        return not attempts.fast
    spent = sum([hop.queue_us + hop.compute_us for hop in result.hops]) / 1e6
    return result.attempt > 1 or seconds > 2 * spent


def is_silence(result: Result | None) -> bool:
    """Whether a request ended because no answer came, rather than by a failure that somebody
    reported."""
    return (
        result is not None
        and result.status is Status.DEADLINE_EXCEEDED
        and not result.stage
        and result.attempt > 0
    )


def is_unserved(outcome: Outcome) -> bool:
    """Whether a stage, the first or a later one, had no node that listened."""
    if isinstance(outcome, Result):
        return outcome.stage > 0 and not outcome.node
    return isinstance(outcome, NoResponders)


def is_behind(outcome: Outcome) -> bool:
    """Whether a stage failed only because its weights are older than the request asks for. The
    stage works, as its own hop shows, and other requests may succeed."""
    if not isinstance(outcome, Result) or outcome.status is not Status.UNAVAILABLE:
        return False
    return bool(outcome.stage and outcome.hops and outcome.hops[-1].stage == outcome.stage)


def is_own_fault(result: Result | None) -> bool:
    """Whether a working stage could not compute this one request, as its own hop says. Other
    requests may succeed."""
    if result is None or result.status is not Status.INTERNAL:
        return False
    return bool(result.stage and result.hops and result.hops[-1].stage == result.stage)
