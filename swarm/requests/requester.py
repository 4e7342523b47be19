"""The requester: sends a request, waits, asks again inside the budget, takes the first answer.

The decisions are in `swarm.requests.attempts`; here they are carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from random import Random

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    NoResponders,
    NotConnected,
    PermissionDenied,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.flow.backoff import Backoff
from swarm.link import Link, LinkMessage
from swarm.model import ModelInfo
from swarm.requests.admission import ModelAdmission
from swarm.requests.attempts import (
    Do,
    Outcome,
    Tried,
    counts,
    goes_fast,
    is_behind,
    is_ok,
    is_unusual,
    missing_after,
    next_step,
    no_lane_took,
    unheard,
)
from swarm.requests.hedge import Hedger
from swarm.requests.request import FAST, Ask, Picker
from swarm.requests.retry import RetryBudget
from swarm.requests.sessions import SeenWeights
from swarm.requests.under_way import ModelWay, UnderWay, ready_or_refused
from swarm.samehost.compact import decode_result
from swarm.samehost.memory import ShmError
from swarm.subjects import ANY
from swarm.transport.api import Event, Held, Left, Refused, Safe, Stored
from swarm.transport.coding import accepts
from swarm.transport.handover.words import WORDS
from swarm.transport.parcel import Parcel
from swarm.transport.routes import Routes
from swarm.wire.messages import Features, Result
from swarm.wire.tensors import Claimed

# Requests under way from which on a request goes together with others of the same turn of the loop:
# of forty that are asked at once, one by one, ten fill a socket. (Measured: 16 in flight: 5 % fewer
# requests a second for 14 % less CPU.)
MOST_ALONE = 4
RETRY_PAUSE, RETRY_PAUSE_MOST = 0.005, 0.1  # seconds between attempts, doubled, with full jitter
RETRIES_PER_REQUEST, RETRIES_PER_SECOND = 0.1, 5.0
MOST_VERSIONS = 16  # model versions whose way to stage 1 is kept; the longest unused one goes


class Requester:
    """Owned by a mesh or a node; safe for any number of concurrent requests.

    routes: whose clock it goes by. picker: the routing policy for stage 1; without one, the shared
    lane. rng: draws the pauses between attempts.
    """

    def __init__(
        self, routes: Routes, picker: Picker | None = None, rng: Random | None = None
    ) -> None:
        self._routes = self._bulk = routes
        self._link = routes.link
        self._lender = routes.lender
        self._clock = routes.clock
        self._picker = picker
        self._budget = RetryBudget(RETRIES_PER_REQUEST, RETRIES_PER_SECOND)
        self.seen = SeenWeights(clock=routes.clock)
        self._uncounted = 0  # requests that the retry budget has not been told of
        self._hedger = Hedger()
        self._rng = Random() if rng is None else rng
        self._requests: dict[str, UnderWay] = {}  # by reply subject
        self._versions: OrderedDict[tuple[str, str], ModelWay] = OrderedDict()
        self.sent = 0  # attempts
        self.retries = 0
        self.hedges = 0
        self._on_up: dict[Link, Callable[[], None]] = {}
        self._follow(routes.link)

    def use_second(self, bulk: Routes) -> None:
        """Models with large messages have a connection of their own. Call before the first
        request."""
        self._bulk = bulk
        self._follow(bulk.link)

    def _follow(self, link: Link) -> None:
        self._on_up[link] = partial(self._reconnected, link)
        link.on_up.append(self._on_up[link])
        link.on_denied.append(self._denied)

    @property
    def under_way(self) -> int:
        """Requests that wait for their answers."""
        return len(self._requests)

    def admission(self, info: ModelInfo) -> ModelAdmission:
        """The admission of a model version, with its latencies."""
        return self._version(info).admission

    def breakers(self) -> dict[str, str]:
        """The states of circuit breakers that have seen failures, by `model@version/stage`."""
        return {
            f"{model}@{version}/{stage}": str(state)
            for (model, version), way in self._versions.items()
            for stage, state in way.admission.breakers.items()
        }

    async def infer(self, ask: Ask) -> Result:
        """The result, failed or not. Never raises a `SwarmError`: a failure is a result."""
        started = self._clock()  # uvloop's own clock has steps of a millisecond
        version = self._version(ask.info)
        remaining = ask.deadline - asyncio.get_running_loop().time()
        if remaining <= 0:  # no overload: to come again later would not help
            return ask.failed(DeadlineExceeded("the budget was over before the request was sent"))
        try:
            taken = version.admission.enter(remaining, started)
        except SwarmError as error:
            if isinstance(error, Unavailable) and self._routes.look_out is not None:
                self._routes.look_out()  # a node that comes back closes the breaker
            return ask.failed(error)
        session = (ask.info.model, ask.info.version, ask.agent, ask.session)
        if ask.session and len(self.seen):
            ask.weights = max(ask.weights, self.seen.least(session))
        link = version.routes.link
        reply = link.expect(self._answer)
        silences = version.admission.fast if ask.delivery == FAST else version.admission.silences
        request = UnderWay(ask, reply, Tried(ask.delivery == FAST, started), version, silences)
        request.is_probe = taken.is_probe
        self._requests[reply] = request
        self._uncounted += 1
        result: Result | None = None
        try:
            result = await self._answered(request)
        finally:
            link.forget(reply)
            del self._requests[reply]
            now = self._clock()
            unusual = is_unusual(request.tried, ask.hedge is not None, result, now - started)
            judged = not request.was_behind or is_ok(result)
            unheard_at = request.tried.at if request.unheard and not is_ok(result) else None
            version.admission.leave(taken, result, now, unusual, judged, unheard_at)
            self._end(request, result)
        result.latency = self._clock() - started
        if ask.session and result.status is Status.OK:
            self.seen.saw(session, result.weights)
        elif ask.session and request.was_behind:
            self.seen.lacked(session, ask.weights)
        if result.status is Status.RESOURCE_EXHAUSTED and not result.stage:
            # The first lane, if it was full, has room when the next request is answered.
            result.retry_after = result.retry_after or version.admission.pace
        return result

    def tend(self) -> None:
        """Call about every second: tell the retry budget of the requests since the last call."""
        if self._uncounted:
            self._budget.on_requests(self._uncounted, self._clock())
            self._uncounted = 0

    def _end(self, request: UnderWay, result: Result | None) -> None:
        if request.sending is not None:
            request.sending.drop()
            # A sending knows its request: a circle would be work for the garbage collector.
            request.sending = None
        if request.first is not None and request.first.loan.claims:
            # Behind the caller's turn, which freeing would keep waiting for 0.03 ms. The next
            # request is written where this one was, into memory that the caches hold.
            asyncio.get_running_loop().call_soon(request.free)
        if request.copies > (result is not None):
            self._cancel(request.ask)
        if self._picker is not None:
            self._picker.ended(request.ask, is_ok(result))

    def _cancel(self, ask: Ask) -> None:
        """An attempt that is still on its way need not be computed."""
        with contextlib.suppress(SwarmError):  # it only saves work
            subject = self._routes.subjects.cancel(ask.info.model, ask.info.version)
            self._link.publish(subject, ask.id.encode())

    def _version(self, info: ModelInfo) -> ModelWay:
        key = (info.model, info.version)
        version = self._versions.get(key)
        if version is None:
            self._make_room()
            routes = self._bulk if info.is_large else self._routes
            version = ModelWay(routes, info, lambda: len(self._requests))
            self._versions[key] = version
        else:
            self._versions.move_to_end(key)
        return version

    def _make_room(self) -> None:
        """Close the ways that were not used for longest. A way with requests under way stays: its
        parcels would be stored, and computed twice."""
        idle = [key for key, version in self._versions.items() if not version.admission.inside]
        for key in idle[: max(0, len(self._versions) + 1 - MOST_VERSIONS)]:
            self._versions.pop(key).sender.close()

    # --- attempts ---------------------------------------------------------------------

    async def _answered(self, request: UnderWay) -> Result:
        # The usual way ends here: one timer, where a timeout's context would be a second one.
        outcome = await self._attempt(request)
        if isinstance(outcome, Result) and outcome.status is not Status.UNAVAILABLE:
            return outcome
        try:
            async with asyncio.timeout_at(request.ask.deadline):
                return await self._again(request, outcome)
        except TimeoutError:
            return request.late_answer or request.expired()

    async def _again(self, request: UnderWay, outcome: Outcome) -> Result:
        """The first attempt came to `outcome`: ask again, as often as it makes sense."""
        loop = asyncio.get_running_loop()
        self.tend()
        backoff = Backoff(RETRY_PAUSE, RETRY_PAUSE_MOST, self._rng)
        silences = request.silences
        while True:
            failed = _failure(request, outcome)
            if outcome is not None:
                request.refusal = failed.message
                # Fast mode asks nodes, and lanes behind them: only those tell of an outage.
                by_lane = not request.tried.fast
                request.unheard = by_lane and isinstance(outcome, NoResponders | NotConnected)
                in_vain = request.is_probe or loop.time() > request.ask.tried_until
                if request.unheard and in_vain:
                    return failed
            now = self._clock()
            request.tried.looked(request.version.routes.link.pace.has_carried(request.tried.sent))
            step = next_step(
                outcome,
                request.tried,
                silences,
                now=now,
                left=request.ask.deadline - loop.time(),
                has_retry=self._budget.has_retry(now),
                pause=backoff.next(),
            )
            if step.do is Do.END:
                return failed
            if step.do is Do.LAST_CHANCE:
                return await self._last_chance(request, failed)
            if step.do is Do.WAIT:
                outcome = await self._wait(request, step.seconds)
                continue
            self.retries += 1
            if step.do is Do.REPEAT:
                with silences.repeating():
                    outcome = await self._attempt(request)
                continue
            silences.asked(now)
            if step.paid:
                self._budget.try_retry(now)
            meanwhile: Outcome = None
            if step.when_connected:
                meanwhile = await self._connected(request, step.seconds)
            elif outcome is not None:
                meanwhile = await self._wait(request, step.seconds)
            if isinstance(meanwhile, Result):
                outcome = meanwhile
            else:
                outcome = await self._attempt(request)

    async def _attempt(self, request: UnderWay) -> Outcome:
        """A result, the reason why it could not be sent, or None: no answer in good time. In fast
        mode an attempt that no lane takes goes without one, at once."""
        tried = request.tried
        while request.late_answer is None:
            tried.attempt += 1
            tried.at = self._clock()
            if request.sending is not None:
                request.sending.drop()
            request.outcome = asyncio.get_running_loop().create_future()
            try:
                self._send(request)
            except SwarmError as error:  # of the routing policy
                return error
            timers = self._timers(request)
            try:
                outcome = await request.outcome
            finally:
                for timer in timers:
                    timer.cancel()
            if request.late_answer is not None:
                break
            if not no_lane_took(tried, outcome):
                self._learn(request, outcome)
                return outcome
            tried.laneless = True
        return request.late_answer

    def _learn(self, request: UnderWay, outcome: Outcome) -> None:
        """What an attempt says of the processes that it went to."""
        tried, now = request.tried, self._clock()
        if is_behind(outcome):
            request.was_behind = True
            tried.silences = 0
            return
        unserved = isinstance(outcome, Result) and outcome.status is Status.UNAVAILABLE
        if outcome is None and tried.wants_fast and not tried.fast:
            tried.laneless = True  # and it says nothing of fast mode
        elif outcome is None:
            request.silences.silent(now)
        elif tried.fast and (unheard(outcome) or unserved):
            request.silences.unserved(now)
        tried.silences = tried.silences + 1 if outcome is None else 0

    def _send(self, request: UnderWay, spare: bool = False) -> None:
        """Send the present attempt. spare: beside the one before, which goes on."""
        ask, tried = request.ask, request.tried
        link = request.version.routes.link
        if len(self._requests) > MOST_ALONE and not link.bursting:
            link.gather.together()
        now = self._clock()
        left = ask.deadline - asyncio.get_running_loop().time()
        silences = request.silences
        doubtful = silences.troubled and silences.doubtful(now)
        if not spare:
            tried.fast = goes_fast(tried, doubtful)
            tried.laneless = False
            tried.stored = False
        lane = ANY
        if self._picker is not None and not tried.fast:
            lane = self._picker.pick_lane(ask, left)
        codecs, rate = accepts(request.version.routes, ask.info)
        features = Features(
            id=ask.id,
            model=ask.info.model,
            version=ask.info.version,
            stage=1,
            reply=request.reply,
            budget_us=0,  # counted down by the parcel
            tensors=dict(ask.tensors),
            attempt=tried.attempt,
            agent=ask.agent,
            sequence=ask.sequence,
            session=ask.session,
            traceparent=ask.traceparent,
            host=self._lender.host,
            hops=list(ask.hops),
            weights=ask.weights,
            shadow=ask.shadow,
            accepts=codecs,
            answer_rate=rate,
        )
        parcel = Parcel(
            features,
            now + left,
            lane=lane,
            fast=tried.fast,
            doubtful=doubtful,
            clock=self._clock,
        )
        if request.first is None:
            request.first = parcel
        request.copies += not tried.fast  # one that goes together with others has not left yet
        self.sent += 1
        on = partial(self._event, request, parcel, spare)
        sending = request.version.sender.send(parcel, on)
        if not spare:
            request.sending = sending
            tried.sent = request.version.routes.link.pace.sent

    def _event(self, request: UnderWay, parcel: Parcel, spare: bool, event: Event) -> None:
        """What became of an attempt on its way to stage 1."""
        tried = request.tried
        match event:
            case Held():
                tried.stored = True  # as much as need be
                self._collect()
            case Left():
                tried.stored = True
                request.copies += 1
                self._collect()
                if request.reply not in self._requests:
                    self._cancel(request.ask)  # given up within the burst that it was sent with
            case Stored(late):
                tried.stored = True
                request.copies += late
                if request.version.lost_at:
                    self._lane_is_back(request.version)
                self._collect()
            case Safe() | Refused(late=True):
                pass  # a later stage has it, or a late process, which may still answer
            case Refused(error):
                parcel.loan.take_back()
                if parcel.fast:
                    request.copies -= isinstance(error, NoResponders)  # it had left
                else:
                    request.copies -= not event.may_be_stored
                present = parcel.features.attempt == tried.attempt
                self.hedges -= spare
                if spare and present:
                    tried.attempt -= 1  # the first copy is still on its way
                elif present:
                    tried.stored = False
                    if isinstance(error, NoResponders):
                        request.version.lost_at = self._clock()
                    _settle(request, error)

    def _lane_is_back(self, version: ModelWay) -> None:
        """The lane of stage 1 was away, and may have been made anew: ask again at once for what it
        had stored before."""
        lost_at, version.lost_at = version.lost_at, 0.0
        for request in self._requests.values():
            tried = request.tried
            if request.version is version and tried.stored and tried.at < lost_at:
                tried.stored = False
                _settle(request, None)

    def _collect(self) -> None:
        """A message was sent, and nothing waits for this process: see which memory is free
        again."""
        if self._lender.lent:
            self._lender.collect()

    def _timers(self, request: UnderWay) -> list[asyncio.TimerHandle]:
        """When to ask again, and when to send a second copy."""
        loop, ask, tried = asyncio.get_running_loop(), request.ask, request.tried
        left = ask.deadline - loop.time()
        admission = request.version.admission
        p99 = admission.usual(tried.at) if tried.fast else 0.0
        lasting = tried.fast and admission.fast.lasting
        after = missing_after(tried, left, p99, lasting)
        timers = [loop.call_later(after, _settle, request, None)]
        if ask.hedge is not None and tried.attempt == 1:
            self._hedger.on_request(tried.at)
            delay = self._hedger.delay_s(
                admission.latency.percentile(ask.hedge, tried.at),
                admission.latency.count,
                left,
                admission.latency.percentile(0.5, tried.at),
            )
            if delay is not None:
                timers.append(loop.call_later(delay, self._hedge, request))
        return timers

    def _hedge(self, request: UnderWay) -> None:
        """A second copy beside the first, which goes on; the first answer wins."""
        if self._hedger.try_hedge(self._clock()):
            request.tried.attempt += 1
            self.hedges += 1
            try:
                self._send(request, spare=True)
            except SwarmError:  # of the routing policy
                request.tried.attempt -= 1
                self.hedges -= 1

    # --- waits ------------------------------------------------------------------------

    async def _wait(self, request: UnderWay, seconds: float) -> Outcome:
        """Not to ask again yet; an earlier attempt may still be answered meanwhile."""
        loop = asyncio.get_running_loop()
        request.outcome = loop.create_future()
        # Not a timeout: it could come between an answer and the task that waits for it.
        timer = loop.call_later(seconds, _settle, request, None)
        try:
            return await request.outcome
        finally:
            timer.cancel()

    async def _connected(self, request: UnderWay, pause: float) -> Outcome:
        """Until there is a connection, `pause` seconds where it is refused, or a late answer."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        request.outcome = outcome

        def connected(_: object) -> None:
            if not outcome.done():  # behind this wait the next attempt has begun
                outcome.set_result(None)

        ready = loop.create_task(ready_or_refused(request.version.routes.link, pause))
        ready.add_done_callback(connected)
        try:
            return await outcome
        finally:
            ready.cancel()

    async def _last_chance(self, request: UnderWay, failed: Result) -> Result:
        """No attempt is left; an earlier one may still be answered inside the budget."""
        request.is_last = True
        waits = failed.status is Status.DEADLINE_EXCEEDED or request.lives
        while waits and request.late_answer is None:
            request.outcome = asyncio.get_running_loop().create_future()
            outcome = await request.outcome
            if isinstance(outcome, Result):
                failed = outcome
            waits = request.lives and failed.status is Status.UNAVAILABLE
        return request.late_answer or failed

    # --- answers ----------------------------------------------------------------------

    def _answer(self, message: LinkMessage) -> None:
        request = self._requests.get(message.subject)
        if request is None:
            return
        if message.headers is not None and message.status == b"503":
            if request.sending is not None:
                request.sending.unheard()
            return
        if message.data in WORDS:
            if request.sending is not None:
                request.sending.told(message.data)
            return
        try:
            result = decode_result(message.data)
            if Claimed in map(type, result.outputs.values()):
                self._lender.take(result.outputs)
        except (DecodeError, ShmError) as error:
            # An answer that cannot be read is as good as lost: ask again.
            result = request.failed(Unavailable(f"the answer cannot be read: {error}"))
        if result.id == request.ask.id:
            self._take(request, result)

    def _take(self, request: UnderWay, result: Result) -> None:
        ok = result.status is Status.OK
        if not ok and result.attempt <= request.tried.attempt:
            request.failed_attempts |= {result.attempt}
        silences = request.silences
        if silences.troubled:
            silences.heard(self._clock(), ok)
        is_end = request.is_last and not request.lives
        if not is_end and not counts(result, request.tried, silences):
            return
        if result.attempt == 1 and request.sending is not None:
            if ok:
                hops = result.hops[len(request.ask.hops) :]
                request.sending.answered(hops)
                request.version.ran(hops)
            else:
                request.sending.drop()
        _settle(request, result)

    def _reconnected(self, link: Link) -> None:
        """The server may have lost what it kept in memory: ask again at once, same id."""
        for request in self._requests.values():
            if request.version.routes.link is not link:
                continue
            request.tried.stored = False
            _settle(request, None)

    def _denied(self, subject: str, error: PermissionDenied) -> None:
        """This user may not send there in fast mode. (Of a lane its publisher says so.)"""
        for request in self._requests.values():
            info = request.ask.info
            if request.tried.fast and subject == self._routes.subjects.fresh(
                info.model, info.version, 1
            ):
                _settle(request, error)

    def close(self) -> None:
        """Nothing is sent any more: for parcels that are held nobody will wait."""
        for request in self._requests.values():
            if request.sending is not None:
                request.sending.drop()
        for link, reconnected in self._on_up.items():
            link.on_up.remove(reconnected)
            link.on_denied.remove(self._denied)
        self._on_up.clear()
        while self._versions:
            self._versions.popitem()[1].sender.close()


def _settle(request: UnderWay, outcome: Outcome) -> None:
    """The present wait came to this. The first word counts; where that does not end the request, an
    answer behind it does."""
    waiting = request.outcome
    if waiting is None or waiting.cancelled():
        return
    if not waiting.done():
        waiting.set_result(outcome)
    elif isinstance(outcome, Result) and outcome.status is Status.OK:
        before = waiting.result()
        if not isinstance(before, Result) or before.status is Status.UNAVAILABLE:
            request.late_answer = outcome


def _failure(request: UnderWay, outcome: Outcome) -> Result:
    """The result of the request if this outcome ends it."""
    if isinstance(outcome, Result):
        return outcome
    if outcome is None:
        return request.expired()  # silence, or a reconnect
    return request.failed(outcome)
