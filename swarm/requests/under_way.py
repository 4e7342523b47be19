"""One request under way: its attempts, until the first answer or the end of its budget.

The decisions are in `swarm.requests.attempts`; here they are carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from random import Random

from swarm.addresses import endpoint
from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    NoResponders,
    NotConnected,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.flow.backoff import Backoff
from swarm.flow.rules import decide
from swarm.link import Link, LinkMessage
from swarm.requests.attempts import (
    AT_THE_END,
    DEFAULTS,
    RULES,
    AttemptAction,
    AttemptConfig,
    Attempts,
    AttemptSituation,
    AttemptsOver,
    Outcome,
    ends_wait,
    goes_fast,
    is_behind,
    is_unserved,
    missing_after,
    no_lane_took,
)
from swarm.requests.model_way import ModelWay
from swarm.requests.request import Ask, Picker
from swarm.requests.retry import Hedger, RetryBudget
from swarm.requests.silence import Silences
from swarm.samehost.compact import decode_result
from swarm.samehost.memory import ShmError
from swarm.subjects import ANY
from swarm.transport.api import Acked, Event, InFlight, Published, Refused, Sending, Stored
from swarm.transport.handover.acks import VERBS
from swarm.transport.lane import NoPubAck
from swarm.transport.parcel import Parcel
from swarm.transport.routes import Routes
from swarm.wire.messages import Features, Result
from swarm.wire.tensors import Claimed, are_referred

# Requests under way from which on a request goes together with others of the same turn of the loop:
# of forty that are asked at once, one by one, ten fill a socket. (Measured: 16 in flight: 5 % fewer
# requests a second for 14 % less CPU.)
MOST_ALONE = 4


AT_ITS_END = 0.001  # seconds before the end of a budget: an attempt ends with it, and is no silence
SILENT_AFTER = 0.2  # seconds without a PubAck; a healthy server takes milliseconds


@dataclass(eq=False)
class RequesterState:
    """What all requests of one requester share: budgets, counts since the start, and each other.

    picker: the routing policy for stage 1. rng: draws the pauses between attempts. requests: those
    under way, by reply subject. uncounted: requests that the retry budget does not know of yet.
    sent: attempts."""

    routes: Routes
    picker: Picker | None
    rng: Random
    config: AttemptConfig = DEFAULTS
    requests: dict[str, UnderWay] = field(default_factory=dict)
    uncounted: int = 0
    sent: int = 0
    retries: int = 0
    hedges: int = 0

    def __post_init__(self) -> None:
        config = self.config
        self.retry_budget = RetryBudget(config.retries_per_request, config.retries_per_second)
        self.hedger = Hedger(config.hedges_per_request)

    def count_requests(self) -> None:
        """Let the retry budget know of the requests since the last call."""
        if self.uncounted:
            self.retry_budget.on_requests(self.uncounted, self.routes.clock())
            self.uncounted = 0

    def cancel(self, ask: Ask) -> None:
        """An attempt that is still on its way need not be computed."""
        with contextlib.suppress(SwarmError):  # it only saves work
            subject = self.routes.subjects.cancel(ask.info.model, ask.info.version)
            self.routes.link.publish(subject, ask.id.encode())


@dataclass(slots=True, eq=False)
class UnderWay:
    """A request that waits for its answer. Call `run` once.

    is_probe: it is sent once, to see whether a lane takes it. no_lane: the last attempt found no
    lane that takes it, or no connection. was_behind: a stage had older weights than asked for.
    """

    ask: Ask
    way: ModelWay
    attempts: Attempts
    is_probe: bool
    _shared: RequesterState
    _silences: Silences  # of its model version and delivery mode
    no_lane: bool = False
    was_behind: bool = False
    _reply: str = ""  # the subject of the answer
    _copies: int = 0  # attempts that were sent, and may still be computed
    _failed: frozenset[int] = frozenset()  # numbers of the attempts whose stages said so
    _first: Parcel | None = None  # the first attempt's, which alone may lend memory
    _sending: Sending | None = None  # the last attempt
    _outcome: asyncio.Future[Outcome] | None = None  # of the present wait
    _is_last: bool = False  # no further attempt is made
    _refusal: Result | None = None  # the latest known failure of an attempt
    _late_answer: Result | None = None  # it came when nobody waited for one

    async def run(self) -> Result:
        """The result, failed or not."""
        link, shared = self.way.routes.link, self._shared
        self._reply = link.expect(self._receive)
        shared.requests[self._reply] = self
        shared.uncounted += 1
        result: Result | None = None
        try:
            # Most requests end here, with one timer. The context of a timeout would add a second
            # one.
            outcome = await self._attempt()
            if isinstance(outcome, Result) and outcome.status is not Status.UNAVAILABLE:
                result = outcome
            else:
                result = await self._ask_again(outcome)
            return result
        finally:
            link.forget(self._reply)
            del shared.requests[self._reply]
            self._end(result)

    def _end(self, result: Result | None) -> None:
        self.drop()
        if self._first is not None and self._first.loan.claims:
            # Behind the caller's turn, which freeing would keep waiting for 0.03 ms. The next
            # request is written where this one was, into memory that the caches hold. A process
            # that still reads it finds the memory recycled and fails, without harm: nobody waits
            # for its answer.
            asyncio.get_running_loop().call_soon(self._first.released)
        if self._copies > (result is not None):
            self._shared.cancel(self.ask)
        if self._shared.picker is not None:
            self._shared.picker.ended(self.ask, result is not None and result.status is Status.OK)

    def drop(self) -> None:
        """Nobody waits for the last attempt any more."""
        if self._sending is not None:
            self._sending.drop()
            # A sending knows its request: a circle would be work for the garbage collector.
            self._sending = None

    @property
    def may_be_answered(self) -> bool:
        """Whether an attempt may still be answered."""
        return self._copies > len(self._failed)

    # --- attempts ---------------------------------------------------------------------

    async def _ask_again(self, outcome: Outcome) -> Result:
        """The first attempt came to `outcome`: ask again, as often as it makes sense."""
        self._shared.count_requests()
        try:
            async with asyncio.timeout_at(self.ask.deadline):
                failed, waits = await self._retry(outcome)
                return await self._last_chance(failed) if waits else failed
        except TimeoutError:
            self.no_lane = self.no_lane or self._is_lane_silent()
            return self._late_answer or self._expired()

    def _is_lane_silent(self) -> bool:
        """Whether the server has had the last attempt for a while, and has not said that a lane has
        it. Within a short budget it may not have come so far."""
        attempts, link = self.attempts, self.way.routes.link
        if attempts.fast or attempts.stored or not link.send_rate.has_carried(attempts.sent):
            return False
        return self._shared.routes.clock() - attempts.begun > SILENT_AFTER

    async def _retry(self, outcome: Outcome) -> tuple[Result, bool]:
        """The result, and whether an earlier attempt may bring a better one."""
        loop, shared, attempts = asyncio.get_running_loop(), self._shared, self.attempts
        config, silences, link = shared.config, self._silences, self.way.routes.link
        backoff = Backoff(config.pause, config.longest_pause, shared.rng)
        while True:
            remaining = self.ask.deadline - loop.time()
            if outcome is not None or remaining > AT_ITS_END:
                attempts.ended(outcome, shared.routes.clock())
            failed = self._failure(outcome)
            if outcome is not None:
                self._refusal = failed
                # Fast mode asks nodes, and lanes behind them: only lanes tell of an outage.
                no_lane = isinstance(outcome, NoResponders | NotConnected | NoPubAck)
                self.no_lane = no_lane and not attempts.fast
                if self.no_lane and (self.is_probe or loop.time() > self.ask.tried_until):
                    return failed, False
            now = self._shared.routes.clock()
            attempts.looked(link.send_rate.has_carried(attempts.sent))
            situation = AttemptSituation(
                outcome,
                attempts,
                silences,
                now,
                remaining=remaining,
                has_retry=shared.retry_budget.has_retry(now),
                pause=backoff.next(),
                config=config,
            )
            step = decide(RULES, situation)
            if step.do in (AttemptAction.END, AttemptAction.LAST_CHANCE):
                return failed, step.do is AttemptAction.LAST_CHANCE
            if step.do is AttemptAction.WAIT:
                outcome = await self._wait(step.seconds)
                continue
            shared.retries += 1
            if step.do is AttemptAction.REPEAT:
                with silences.repeating():
                    outcome = await self._attempt()
                continue
            silences.asked(now)
            if step.paid:
                shared.retry_budget.try_retry(now)
            meanwhile: Outcome = None
            if step.when_connected:
                meanwhile = await self._connected(step.seconds)
            elif outcome is not None:
                meanwhile = await self._wait(step.seconds)
            outcome = meanwhile if isinstance(meanwhile, Result) else await self._attempt()

    async def _attempt(self) -> Outcome:
        """A result, the reason why it could not be sent, or None: no answer in good time. In fast
        mode an attempt that no lane takes goes without one, at once."""
        attempts = self.attempts
        while self._late_answer is None:
            attempts.begin(self._shared.routes.clock())
            if self._sending is not None:
                self._sending.drop()
            self._outcome = asyncio.get_running_loop().create_future()
            try:
                self._send()
            except SwarmError as error:  # of the routing policy
                return error
            timers = self._timers()
            try:
                outcome = await self._outcome
            finally:
                for timer in timers:
                    timer.cancel()
            if self._late_answer is not None:
                break
            if isinstance(outcome, Result) and outcome.status is Status.OK:
                return outcome
            if not no_lane_took(attempts, outcome):
                self._learn(outcome)
                return outcome
            attempts.laneless = True
        return self._late_answer

    def _learn(self, outcome: Outcome) -> None:
        """Take from an attempt's failure what it tells of the processes that it went to."""
        attempts, now = self.attempts, self._shared.routes.clock()
        if is_behind(outcome):
            self.was_behind = True
            attempts.unanswered = 0
            return
        unserved = isinstance(outcome, Result) and outcome.status is Status.UNAVAILABLE
        if outcome is None and attempts.wants_fast and not attempts.fast:
            attempts.laneless = True  # and it says nothing of fast mode
        elif outcome is None:
            self._silences.silent(now)
        elif attempts.fast and (is_unserved(outcome) or unserved):
            self._silences.unserved(now)
        attempts.unanswered = attempts.unanswered + 1 if outcome is None else 0

    def _send(self, is_hedge: bool = False) -> None:
        """Send the present attempt. is_hedge: beside the one before, which goes on."""
        ask, attempts, shared, routes = self.ask, self.attempts, self._shared, self.way.routes
        link = routes.link
        if len(shared.requests) > MOST_ALONE and not link.bursting:
            link.gather.together()
        now = shared.routes.clock()
        remaining = ask.deadline - asyncio.get_running_loop().time()
        doubtful = self._silences.troubled and self._silences.doubtful(now)
        if not is_hedge:
            attempts.fast = attempts.wants_fast and goes_fast(attempts, doubtful)
            attempts.laneless = False
            attempts.stored = False
        lane = ANY
        if shared.picker is not None and not attempts.fast:
            lane = shared.picker.pick_lane(ask, remaining)
        codecs, rate = self.way.accepts
        features = Features(
            id=ask.id,
            model=ask.info.model,
            version=ask.info.version,
            stage=ask.stage,
            reply=self._reply,
            budget_us=0,  # counted down by the parcel
            tensors=dict(ask.tensors),
            attempt=attempts.last,
            agent=ask.agent,
            sequence=ask.sequence,
            session=ask.session,
            traceparent=ask.traceparent,
            host=routes.lender.host,
            hops=list(ask.hops),
            weights=ask.weights,
            shadow=ask.shadow,
            accepts=codecs,
            answer_rate=rate,
            urgency=ask.urgency,
            instead=ask.instead,
            refer=ask.refer,
        )
        parcel = Parcel(
            features,
            now + remaining,
            lane=lane,
            fast=attempts.fast,
            doubtful=doubtful,
            clock=routes.clock,
        )
        if self._first is None:
            self._first = parcel
        self._copies += not attempts.fast  # a fast one leaves with others, later
        shared.sent += 1
        sending = self.way.sender.send(parcel, partial(self._on_event, parcel, is_hedge))
        if not is_hedge:
            self._sending = sending
            attempts.sent = link.send_rate.sent

    def _on_event(self, parcel: Parcel, is_hedge: bool, event: Event) -> None:
        """What became of an attempt on its way to stage 1."""
        attempts, lender = self.attempts, self.way.routes.lender
        match event:
            case InFlight():
                attempts.stored = True  # as much as need be
            case Published():
                attempts.stored = True
                self._copies += 1
                if self._reply not in self._shared.requests:
                    self._shared.cancel(self.ask)  # given up within the burst of its sending
            case Stored(late):
                attempts.stored = True
                self._copies += late
                if self.way.no_lane_at:
                    self._ask_again_for_stored()
            case Acked() | Refused(late=True):
                return  # a later stage has it, or a late process, which may still answer
            case Refused(error):
                parcel.loan.take_back()
                if parcel.fast:
                    self._copies -= isinstance(error, NoResponders)  # it had left
                else:
                    self._copies -= not event.may_be_stored
                is_present = parcel.features.attempt == attempts.last
                self._shared.hedges -= is_hedge
                if is_hedge and is_present:
                    attempts.hedge = 0  # the first copy is still on its way
                elif is_present:
                    attempts.stored = False
                    if isinstance(error, NoResponders):
                        self.way.no_lane_at = self._shared.routes.clock()
                    self.end_wait(error)
                return
        if lender.lent:
            # A message was sent, and nothing waits for this process: free what nobody reads.
            lender.collect()

    def _ask_again_for_stored(self) -> None:
        """The lane of stage 1 was away, and may have been made anew: ask again at once for all that
        it had stored before."""
        no_lane_at, self.way.no_lane_at = self.way.no_lane_at, 0.0
        for request in self._shared.requests.values():
            attempts = request.attempts
            if request.way is self.way and attempts.stored and attempts.at < no_lane_at:
                request.lost_in_lane()

    def lost_in_lane(self) -> None:
        """The lane may have lost the last attempt: ask again at once, same id."""
        self.attempts.stored = False
        self.end_wait(None)

    def _timers(self) -> list[asyncio.TimerHandle]:
        """When to ask again, and when to send a second copy."""
        loop, ask, attempts = asyncio.get_running_loop(), self.ask, self.attempts
        config, admission = self._shared.config, self.way.admission
        remaining = ask.deadline - loop.time()
        if attempts.fast:
            p99, lasting = admission.usual(attempts.at), admission.fast.lasting
            after = missing_after(attempts, remaining, p99, lasting, config)
        else:
            after = missing_after(attempts, remaining, config=config)
        timers = [loop.call_later(after, self.end_wait, None)]
        if ask.hedge is not None and attempts.number == 1:
            hedger, latency = self._shared.hedger, admission.latency
            hedger.on_request(attempts.at)
            delay = hedger.delay_s(
                latency.percentile(ask.hedge, attempts.at),
                latency.count,
                remaining,
                latency.percentile(0.5, attempts.at),
            )
            if delay is not None:
                timers.append(loop.call_later(delay, self._hedge))
        return timers

    def _hedge(self) -> None:
        """A second copy beside the first, which goes on; the first answer wins."""
        shared = self._shared
        if shared.hedger.try_hedge(shared.routes.clock()):
            self.attempts.hedge = self.attempts.number + 1
            shared.hedges += 1
            try:
                self._send(is_hedge=True)
            except SwarmError:  # of the routing policy
                self.attempts.hedge = 0
                shared.hedges -= 1

    # --- waits ------------------------------------------------------------------------

    async def _wait(self, seconds: float) -> Outcome:
        """Wait before the next attempt; an earlier one may still be answered meanwhile."""
        loop = asyncio.get_running_loop()
        self._outcome = loop.create_future()
        # Not a timeout: it could come between an answer and the task that waits for it.
        timer = loop.call_later(seconds, self.end_wait, None)
        try:
            return await self._outcome
        finally:
            timer.cancel()

    async def _connected(self, pause: float) -> Outcome:
        """Until there is a connection, `pause` seconds where it is refused, or a late answer."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        self._outcome = outcome

        def connected(_: object) -> None:
            if not outcome.done():  # behind this wait the next attempt has begun
                outcome.set_result(None)

        ready = loop.create_task(_ready_or_refused(self.way.routes.link, pause))
        ready.add_done_callback(connected)
        try:
            return await outcome
        finally:
            ready.cancel()

    async def _last_chance(self, failed: Result) -> Result:
        """No attempt is left; an earlier one may still be answered inside the budget."""
        self._is_last = True
        config, loop = self._shared.config, asyncio.get_running_loop()
        waits = failed.status is Status.DEADLINE_EXCEEDED or self.may_be_answered
        while waits and self._late_answer is None:
            left = self.ask.deadline - loop.time()
            if failed.status is Status.DEADLINE_EXCEEDED:
                outcome = await self._wait(left + 1.0)
            else:
                # A node that has two copies of an attempt, one by a lane and one handed over late,
                # answers one of them.
                least = config.missing_after
                outcome = await self._wait(max(least, config.missing_after_share * left))
                if outcome is None:
                    break
            if isinstance(outcome, Result):
                failed = outcome
            waits = self.may_be_answered and failed.status is Status.UNAVAILABLE
        return self._late_answer or failed

    def end_wait(self, outcome: Outcome) -> None:
        """The present wait came to this. The first outcome counts; where that does not end the
        request, an answer behind it does."""
        waiting = self._outcome
        if waiting is None or waiting.cancelled():
            return
        if not waiting.done():
            waiting.set_result(outcome)
        elif isinstance(outcome, Result) and outcome.status is Status.OK:
            before = waiting.result()
            if not isinstance(before, Result) or before.status is Status.UNAVAILABLE:
                self._late_answer = outcome

    # --- answers ----------------------------------------------------------------------

    def _receive(self, message: LinkMessage) -> None:
        """A message to the reply subject: an answer, or news of the process that has the parcel."""
        sending = self._sending
        if message.headers is not None and message.status == b"503":
            if sending is not None:
                sending.on_no_responders()
            return
        if message.data in VERBS:
            if sending is not None:
                sending.on_ack(message.data)
            return
        try:
            result = decode_result(message.data)
            if Claimed in map(type, result.outputs.values()):
                self.way.routes.lender.take(result.outputs)
            if are_referred(result.outputs) and not self.ask.refer:
                raise DecodeError("it refers to tensors, and was not asked to")
        except (DecodeError, ShmError) as error:
            # An answer that cannot be read is as good as lost: ask again.
            result = self._failure(Unavailable(f"the answer cannot be read: {error}"))
        if result.id == self.ask.id:
            self._receive_result(result)

    def _receive_result(self, result: Result) -> None:
        ok, silences = result.status is Status.OK, self._silences
        if not ok and result.attempt <= self.attempts.last:
            self._failed |= {result.attempt}
            self._refusal = result
        if silences.troubled:
            silences.answered(self._shared.routes.clock(), ok)
        is_end = ok or (self._is_last and not self.may_be_answered)
        if not is_end and not ends_wait(result, self.attempts, silences):
            return
        if result.attempt == 1 and self._sending is not None:
            if ok:
                hops = result.hops[len(self.ask.hops) :]
                self._sending.answered(hops)
                self._sending = None
                if hops:
                    self.way.slowest.add(max([hop.compute_us for hop in hops]) / 1e6)
            else:
                self._sending.drop()
        self.end_wait(result)

    def _failure(self, outcome: Outcome) -> Result:
        """The result of the request if this outcome ends it."""
        if isinstance(outcome, Result):
            return outcome
        if outcome is None:
            return self._expired()  # silence, or a reconnect
        return self.ask.failed(outcome, self.attempts.last)

    def _expired(self) -> Result:
        """The result of a request whose budget is over."""
        attempts, refusal = self.attempts, self._refusal
        over = AttemptsOver(attempts, self._shared.routes.clock())
        if refusal is not None and decide(AT_THE_END, over) is Status.UNAVAILABLE:
            return refusal
        where = (
            f"{endpoint(self.way.routes.link.url)} did not say that a lane has it: that server, or "
            "the link to it, is away or slow"
        )
        if attempts.stored:
            where = "the first stage, or its lane, had it"
        text = f"no answer inside the budget ({where}, {attempts.last} attempt(s)); "
        text += f"before that: {refusal.message}; " if refusal else ""
        info = self.ask.info
        text += self.way.routes.flaw(info.model, info.version) or LOOK
        return self.ask.failed(DeadlineExceeded(text), attempts.last)


LOOK = "`swarm status` shows which stages have a ready node"


async def _ready_or_refused(link: Link, pause: float) -> None:
    """Wait for a connection, or for `pause` seconds where none is made: the server refuses who
    connects, which may pass."""
    try:
        await link.ready()
    except SwarmError:
        await asyncio.sleep(pause)
