"""The requester's side of a request: send, wait, retry inside the budget, take the first answer.

A stage that dies is not the requester's business: its lane hands the work on. What is
retried here is what no lane can know of: a request that was never stored (no stream, no
connection), one that a restarted server lost from memory, and an answer that was lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    NoResponders,
    NotConnected,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.placement import NOWHERE, Nearby
from swarm.flow.backoff import Backoff
from swarm.flow.hedge import Hedger
from swarm.flow.retry import RetryBudget
from swarm.flow.silence import Silences
from swarm.lanes import DONE, PASSED_ON, REFUSED, Publisher
from swarm.link import Link, LinkMessage
from swarm.local.compact import decode_result
from swarm.local.host_socket import Direct
from swarm.local.lending import Claims
from swarm.model import ModelInfo
from swarm.requests.admission import Gate
from swarm.requests.outgoing import Outgoing
from swarm.requests.request import CORE, Ask, Outcome, Picker, ended, unheard
from swarm.shm import ShmError
from swarm.subjects import ANY, Subjects
from swarm.wire.messages import Result

# An answer that is missing after this part of the budget, and at least so many seconds, was
# probably lost: lanes recover from a dead node within an ack_wait, well before it.
RETRY_AFTER_SHARE = 0.4
RETRY_AFTER_LEAST = 0.25
WORDS = (DONE, PASSED_ON, REFUSED)  # of what was handed over, where its answer is awaited too
# In fast mode nothing else recovers a request: ask again after three times the usual p99, and ever
# later (`swarm.flow.silence`), but not so late that the end of a silence goes unseen.
FRESH_RETRY_AFTER = (3.0, 0.010, 4.0)  # times the p99, at least seconds, times the one before
FRESH_MOST = 0.25  # seconds, unless the first is more
FRESH_WAIT = 0.05  # seconds after which one that may not ask again wants to know once more
FIRST_PAUSE, LONGEST_PAUSE = 0.010, 0.1  # seconds before a retry, drawn below it
# Seconds for which a stage that nobody serves is asked again at no cost to the retry budget:
# within them gossip knows of a death, and a fallback listens.
NOBODY_FOR = 1.0


class Requester:
    """Owned by a mesh or a node; safe for any number of concurrent requests.

    picker: the routing policy for stage 1; without one, the shared lane.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        claims: Claims | None = None,
        near: Callable[[ModelInfo, int, bool], Nearby] = lambda info, stage, large: NOWHERE,
        direct: Direct | None = None,
    ) -> None:
        self._link = link
        self.picker: Picker | None = None
        self._claims = claims
        self._budget = RetryBudget(ratio=0.1, min_per_s=5.0)
        self._uncounted = 0  # requests that the retry budget does not know of yet
        self._rng = random.Random()
        self._asks: dict[str, Ask] = {}  # by reply subject
        self._gates: dict[tuple[str, str], Gate] = {}
        self._outgoing = Outgoing(
            link,
            subjects,
            publisher,
            claims,
            near,
            direct or Direct(link),
            self._asks,
            self.gate,
            self._pick_lane,
        )
        self._hedger = Hedger()
        self.retries = 0
        self.hedges = 0
        link.on_up.append(self._reconnected)

    async def infer(self, ask: Ask) -> Result:
        """The result, failed or not. Never raises a `SwarmError`: a failure is a result."""
        started = time.monotonic()  # uvloop's own clock has steps of a millisecond
        gate = self.gate(ask.info)
        remaining = ask.deadline - asyncio.get_running_loop().time()
        if remaining <= 0:  # no overload: to come again later would not help
            return ask.failed(DeadlineExceeded("the budget was over before the request was sent"))
        try:
            taken = gate.enter(remaining, started)
        except SwarmError as error:
            return ask.failed(error)
        reply = self._link.expect(self._answer)
        self._asks[reply] = ask
        result: Result | None = None
        try:
            result = await self._answered(ask, reply)
        finally:
            self._link.forget(reply)
            del self._asks[reply]
            now = time.monotonic()
            gate.leave(taken, result, now, _unusual(ask, result, now - started))
            if ask.handed is not None:
                ask.handed.drop(reply)
                if ask.attempt == 1 and not ended(result):
                    self._free(ask)
            if ask.sent > (result is not None):
                self._outgoing.cancel(ask)
            if self.picker is not None:
                self.picker.ended(ask, ended(result))
        result.latency = time.monotonic() - started
        if result.status is Status.RESOURCE_EXHAUSTED and not result.stage:
            # The first lane, if it was full, has room when the next one is answered.
            result.retry_after = result.retry_after or gate.pace
        return result

    def _pick_lane(self, ask: Ask, remaining: float) -> str:
        return ANY if self.picker is None else self.picker.pick_lane(ask, remaining)

    def gate(self, info: ModelInfo) -> Gate:
        """The gate of a model version, with its latencies."""
        key = (info.model, info.version)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate()
        return gate

    def _silences(self, ask: Ask) -> Silences:
        gate = self.gate(ask.info)
        return gate.fast if ask.delivery == CORE else gate.silences

    async def _answered(self, ask: Ask, reply: str) -> Result:
        loop = asyncio.get_running_loop()
        ask.begun = time.monotonic()
        self._uncounted += 1
        # The usual way ends here: one timer, where a timeout's context would be a second one.
        outcome = await self._attempt(ask, reply, loop)
        if isinstance(outcome, Result) and outcome.status is not Status.UNAVAILABLE:
            return outcome
        try:
            async with asyncio.timeout_at(ask.deadline):
                return await self._again(ask, reply, outcome, loop)
        except TimeoutError:
            return ask.answer or ask.expired()

    def tend(self) -> None:
        """Tell the retry budget of the requests since the last call. Call about every second."""
        self._budget.on_requests(self._uncounted, time.monotonic())
        self._uncounted = 0

    def _try_retry(self, now: float) -> bool:
        self._budget.on_requests(self._uncounted, now)
        self._uncounted = 0
        return self._budget.try_retry(now)

    async def _again(
        self, ask: Ask, reply: str, outcome: Outcome, loop: asyncio.AbstractEventLoop
    ) -> Result:
        """The first attempt came to `outcome`: ask again, as often as it makes sense."""
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE, self._rng)
        while True:
            if isinstance(outcome, Result):
                if outcome.status is not Status.UNAVAILABLE:
                    return outcome
                failed: Result = outcome
            elif outcome is None:
                failed = ask.expired()  # silence, or a reconnect: ask again
            else:
                failed = ask.failed(outcome)
                if failed.status is not Status.UNAVAILABLE:
                    # It would fail again; and a full lane is a fast answer: waiting is the
                    # caller's choice.
                    return failed
            if outcome is not None:
                ask.refusal = failed.message
            now = time.monotonic()
            # Asking again what nobody could take multiplies no overload.
            free = unheard(outcome) and now - ask.begun < NOBODY_FOR
            unstored = outcome is None and ask.unkept  # no lane will bring an answer
            silences = self._silences(ask)
            if unstored and silences.swallowed(ask.tried):
                outcome = await self._repeated(ask, reply, silences, loop)
                continue
            allowed = not unstored or silences.try_probe(now)
            if not allowed or (ask.stored and not free and not self._try_retry(now)):
                if unstored:
                    outcome = await self._longer(ask, loop)
                    continue
                return await self._last_chance(ask, failed)
            self.retries += 1
            pause = pauses.next()
            if loop.time() + pause >= ask.deadline:
                return await self._last_chance(ask, failed)
            meanwhile: Outcome = None
            if isinstance(outcome, NotConnected):
                meanwhile = await self._connected(ask, loop)
            elif outcome is not None:
                meanwhile = await self._longer(ask, loop, pause)
            if isinstance(meanwhile, Result):
                outcome = meanwhile
                continue
            outcome = await self._attempt(ask, reply, loop)

    async def _repeated(
        self, ask: Ask, reply: str, silences: Silences, loop: asyncio.AbstractEventLoop
    ) -> Outcome:
        """Ask again what a silence swallowed, when it is this one's turn."""
        if not silences.may_repeat():
            return await self._longer(ask, loop)
        self.retries += 1
        with silences.repeating():
            return await self._attempt(ask, reply, loop)

    async def _longer(
        self, ask: Ask, loop: asyncio.AbstractEventLoop, seconds: float = FRESH_WAIT
    ) -> Outcome:
        """Not to ask again yet; an earlier attempt may still be answered meanwhile."""
        ask.outcome = loop.create_future()
        # Not a timeout: it could come between an answer and who waits for it.
        timer = loop.call_later(seconds, ask.settle, None)
        try:
            return await ask.outcome
        finally:
            timer.cancel()

    async def _connected(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> Outcome:
        """The same until there is a connection."""
        outcome: asyncio.Future[Outcome] = loop.create_future()
        ask.outcome = outcome

        def connected(_: object) -> None:
            if not outcome.done():  # behind this wait the next attempt has begun
                outcome.set_result(None)

        ready = loop.create_task(self._link.ready())
        ready.add_done_callback(connected)
        try:
            return await outcome
        finally:
            ready.cancel()

    async def _attempt(self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop) -> Outcome:
        """A result, the reason why it could not be sent, or None: no answer in good time. In fast
        mode what no lane takes goes without one, at once."""
        if ask.answer is not None:
            return ask.answer
        ask.attempt += 1
        if ask.handed is not None:
            ask.handed.drop(reply)
        ask.outcome = loop.create_future()
        try:
            self._outgoing.send(ask, reply, loop.time())
        except SwarmError as error:
            if not ask.laneless_by(error):
                return error
            return await self._attempt(ask, reply, loop)
        timers = self._timers(ask, reply, loop)
        try:
            outcome = await ask.outcome
        finally:
            for timer in timers:
                timer.cancel()
        if ask.answer is not None:
            return ask.answer
        if ask.laneless_by(outcome):
            return await self._attempt(ask, reply, loop)
        if outcome is None and ask.delivery == CORE and not ask.fresh:
            ask.laneless = True  # and it says nothing of fast mode
        elif outcome is None:
            self._silences(ask).silent(time.monotonic())
        elif ask.fresh and (unheard(outcome) or ended(outcome, Status.UNAVAILABLE)):
            self._silences(ask).unserved(time.monotonic())
        ask.silences = ask.silences + 1 if outcome is None else 0
        return outcome

    def _timers(
        self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop
    ) -> list[asyncio.TimerHandle]:
        """When to ask again, and when to send a second copy."""
        timers = []
        remaining, now = ask.deadline - loop.time(), time.monotonic()
        ask.tried = now
        gate = self.gate(ask.info)
        if ask.fresh:
            factor, least, growth = FRESH_RETRY_AFTER
            after = max(least, factor * gate.usual(now))
            if gate.fast.lasting:
                after = max(after, min(FRESH_MOST, after * growth ** min(ask.silences, 10)))
        else:
            after = max(RETRY_AFTER_LEAST, remaining * RETRY_AFTER_SHARE)
        timers.append(loop.call_later(min(after, remaining), ask.settle, None))
        if ask.hedge is not None and ask.attempt == 1:
            self._hedger.on_request(now)
            delay = self._hedger.delay_s(
                gate.latency.percentile(ask.hedge, now),
                gate.latency.count,
                remaining,
                gate.latency.percentile(0.5, now),
            )
            if delay is not None:
                timers.append(loop.call_later(delay, self._hedge, ask, reply, loop))
        return timers

    def _hedge(self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop) -> None:
        """A second copy beside the first, which goes on; the first answer wins."""
        if not self._hedger.try_hedge(time.monotonic()):
            return
        ask.attempt += 1
        try:
            self._outgoing.send(ask, reply, loop.time(), spare=True)
            self.hedges += 1
        except SwarmError:
            ask.attempt -= 1  # the first copy is still on its way

    async def _last_chance(self, ask: Ask, failed: Result) -> Result:
        """No retry is left; an earlier attempt may still be answered inside the budget."""
        if ask.answer is not None:
            return ask.answer
        if failed.status is Status.DEADLINE_EXCEEDED:
            ask.outcome = asyncio.get_running_loop().create_future()
            outcome = await ask.outcome
            if isinstance(outcome, Result):
                return outcome
        return failed

    def _answer(self, message: LinkMessage) -> None:
        ask = self._asks.get(message.subject)
        if ask is None:
            return
        if message.status == b"503":
            if not ask.fresh:  # of an attempt before
                return
            ask.lent.take_back()  # each try lends anew, and there may be many within a second
            ask.settle(NoResponders("no node serves the next stage at present"))
            return
        if message.data in WORDS:
            if ask.handed is not None:
                ask.handed.told(message.subject, message.data)
            return
        try:
            result = decode_result(message.data)
            if self._claims is not None:
                self._claims.take(result.outputs)
        except (DecodeError, ShmError) as error:
            # An answer that cannot be read is as good as lost: ask again.
            result = ask.failed(Unavailable(f"the answer cannot be read: {error}"))
        if result.id != ask.id:
            return
        silences = self._silences(ask)
        silences.heard(time.monotonic(), result.status is Status.OK)
        lay_there = result.attempt < ask.attempt or silences.swallowed(ask.tried)
        if result.status is Status.RESOURCE_EXHAUSTED and ask.delivery == CORE and lay_there:
            return  # where a stage hung: others will take it
        if result.status is Status.UNAVAILABLE and result.attempt < ask.attempt:
            return  # the present attempt may do better
        if ask.handed is not None and result.attempt == 1:
            if result.status is Status.OK:
                ask.handed.ran(message.subject, result.hops[len(ask.hops) :])
            else:
                ask.handed.drop(message.subject)
        ask.settle(result)
        if ended(result) and ask.attempt == 1:
            # Behind the caller's turn, whom it would keep waiting for 0.03 ms.
            asyncio.get_running_loop().call_soon(self._free, ask)

    def _free(self, ask: Ask) -> None:
        """Whoever still gets the message computes in vain, and may as well fail: the next request
        is written where this one was, into memory that the caches hold."""
        ask.lent.unread()
        ask.lent.take_back()

    def _reconnected(self) -> None:
        """The server may have lost what it kept in memory: ask again at once, same id."""
        for ask in self._asks.values():
            ask.stored = False
            ask.settle(None)

    def close(self) -> None:
        if self._reconnected in self._link.on_up:
            self._link.on_up.remove(self._reconnected)
        self._outgoing.close()


def _unusual(ask: Ask, result: Result | None, took: float) -> bool:
    """Whether an attempt of fast mode was lost, or might have been, as what took so many seconds:
    for ten more all would wait as long as it did. What was only slow has to be learned from."""
    if ask.delivery != CORE or ask.hedge is not None or result is None:
        return False
    if ask.attempt == 1:
        return not ask.fresh
    spent = sum([hop.queue_us + hop.compute_us for hop in result.hops]) / 1e6
    return result.attempt > 1 or took > 2 * spent
