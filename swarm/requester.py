"""The requester's side of a request: send, wait, retry inside the budget, take the first answer.

A stage that dies is not the requester's business: its lane hands the work on. What is
retried here is what no lane can know of: a request that was never stored (no stream, no
connection), one that a restarted server lost from memory, and an answer that was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from functools import partial

from swarm.ask import CORE, Ask, Outcome, Picker, unheard
from swarm.claims import UNLENT, Claims, Lent
from swarm.direct import Direct
from swarm.errors import (
    DecodeError,
    NoResponders,
    NotConnected,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.flow.backoff import full_jitter
from swarm.flow.hedge import Hedger
from swarm.flow.retry import RetryBudget
from swarm.gate import Gate
from swarm.lanes import Publisher
from swarm.link import Link, LinkMessage
from swarm.messages import Features, Result
from swarm.model import ModelInfo
from swarm.near import NOWHERE, Near
from swarm.shm import ShmError
from swarm.subjects import ANY, Subjects
from swarm.tensors import Part

# An answer that is missing after this part of the budget, and at least so many seconds, was
# probably lost: lanes recover from a dead node within an ack_wait, well before it.
RETRY_AFTER_SHARE = 0.4
RETRY_AFTER_LEAST = 0.25
# In fast mode nothing else recovers a request: ask again after three times the usual p99, and ever
# later (`swarm.flow.silence`).
FRESH_RETRY_AFTER = (3.0, 0.010, 4.0)  # times the p99, at least seconds, times the one before
FRESH_WAIT = 0.05  # seconds after which one that may not ask again wants to know once more
# Seconds for which a stage that nobody serves is asked again at no cost to the retry budget:
# within them gossip knows of a death, and a fallback listens.
NOBODY_FOR = 1.0
# Requests of this process under way up to which one goes to a node of this host without the
# server (fast mode) or beside it (a head start). With 4 and 16 in flight head starts cost tiny
# stages 5 and 6 % of their requests a second; in fast mode, 16 and 64 that go together where they
# can have 24 and 9 % more than by the server.
FEW, FEW_FRESH = 1, 64


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
        near: Callable[[ModelInfo, int, bool], Near] = lambda info, stage, large: NOWHERE,
        direct: Direct | None = None,
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._publisher = publisher
        self.picker: Picker | None = None
        self._claims = claims
        self._near = near
        self._direct = direct or Direct(link)
        self._budget = RetryBudget(ratio=0.1, min_per_s=5.0)
        self._rng = random.Random()
        self._asks: dict[str, Ask] = {}  # by reply subject
        self._gates: dict[tuple[str, str], Gate] = {}
        self._hedger = Hedger()
        self.retries = 0
        self.hedges = 0
        link.on_up.append(self._reconnected)

    async def infer(self, ask: Ask) -> Result:
        """The result, failed or not. Never raises a `SwarmError`: a failure is a result."""
        started = time.monotonic()  # uvloop's own clock has steps of a millisecond
        gate = self.gate(ask.info)
        try:
            taken = gate.enter(ask.deadline - asyncio.get_running_loop().time(), started)
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
            gate.leave(taken, result, time.monotonic())
            if ask.sent > (result is not None):
                self._cancel(ask)
            if self.picker is not None:
                self.picker.ended(ask, result is not None and result.status is Status.OK)
        result.latency = time.monotonic() - started
        if result.status is Status.RESOURCE_EXHAUSTED and not result.stage:
            # The first lane, if it was full, has room when the next one is answered.
            result.retry_after = result.retry_after or gate.pace
        return result

    def gate(self, info: ModelInfo) -> Gate:
        """The gate of a model version, with its latencies."""
        key = (info.model, info.version)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate()
        return gate

    async def _answered(self, ask: Ask, reply: str) -> Result:
        loop = asyncio.get_running_loop()
        ask.begun = time.monotonic()
        self._budget.on_request(ask.begun)
        # The usual way ends here: one timer, where a timeout's context would be a second one.
        outcome = await self._attempt(ask, reply, loop)
        if isinstance(outcome, Result) and outcome.status is not Status.UNAVAILABLE:
            return outcome
        try:
            async with asyncio.timeout_at(ask.deadline):
                return await self._again(ask, reply, outcome, loop)
        except TimeoutError:
            return ask.expired()

    async def _again(
        self, ask: Ask, reply: str, outcome: Outcome, loop: asyncio.AbstractEventLoop
    ) -> Result:
        """The first attempt came to `outcome`: ask again, as often as it makes sense."""
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
            ask.refusal = "" if outcome is None else failed.message
            now = time.monotonic()
            # Asking again what nobody could take multiplies no overload.
            free = unheard(outcome) and now - ask.begun < NOBODY_FOR
            unstored = outcome is None and ask.delivery == CORE  # no lane will bring an answer
            allowed = not unstored or self.gate(ask.info).silences.may_ask(now)
            if not allowed or (ask.stored and not free and not self._budget.try_retry(now)):
                if unstored:
                    outcome = await self._longer(ask, loop)
                    continue
                return await self._last_chance(ask, failed)
            self.retries += 1
            pause = full_jitter(ask.attempt, self._rng, base_s=0.005, cap_s=0.1)
            if loop.time() + pause >= ask.deadline:
                return await self._last_chance(ask, failed)
            if isinstance(outcome, NotConnected):
                await self._link.ready()
            elif outcome is not None:
                await asyncio.sleep(pause)
            outcome = await self._attempt(ask, reply, loop)

    async def _longer(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> Outcome:
        """No retry is allowed at present; an earlier attempt may still be answered meanwhile."""
        ask.outcome = loop.create_future()
        # Not a timeout: it could come between an answer and who waits for it.
        timer = loop.call_later(FRESH_WAIT, ask.settle, None)
        try:
            return await ask.outcome
        finally:
            timer.cancel()

    async def _attempt(self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop) -> Outcome:
        """A result, the reason why it could not be sent, or None: no answer in good time."""
        ask.attempt += 1
        ask.outcome = loop.create_future()
        try:
            self._send(ask, reply, loop.time())
        except SwarmError as error:
            return error
        timers = self._timers(ask, reply, loop)
        try:
            outcome = await ask.outcome
        finally:
            for timer in timers:
                timer.cancel()
        if outcome is None:
            self.gate(ask.info).silences.silent(time.monotonic())
        ask.silences = ask.silences + 1 if outcome is None else 0
        return outcome

    def _timers(
        self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop
    ) -> list[asyncio.TimerHandle]:
        """When to ask again, and when to send a second copy."""
        timers = []
        remaining, now = ask.deadline - loop.time(), time.monotonic()
        gate = self.gate(ask.info)
        if ask.delivery == CORE:
            factor, least, growth = FRESH_RETRY_AFTER
            after = max(least, factor * gate.usual(now))
            after *= growth ** (min(ask.silences, 10) if gate.silences.lasting else 0)
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
            self._send(ask, reply, loop.time())
            self.hedges += 1
        except SwarmError:
            ask.attempt -= 1  # the first copy is still on its way

    def _send(self, ask: Ask, reply: str, now: float) -> None:
        info = ask.info
        features = Features(
            id=ask.id,
            model=info.model,
            version=info.version,
            stage=1,
            reply=reply,
            budget_us=int((ask.deadline - now) * 1e6),
            tensors=dict(ask.tensors),
            attempt=ask.attempt,
            agent=ask.agent,
            sequence=ask.sequence,
            session=ask.session,
            traceparent=ask.traceparent,
            hops=list(ask.hops),
        )
        lent, near = UNLENT, NOWHERE
        if self._claims is not None and self._claims.host:
            features.host = self._claims.host
            large = self._claims.wants(features.tensors)
            if large or len(self._asks) <= FEW_FRESH:
                near = self._near(info, 1, large)
            if near.shared and large:
                lent = self._claims.lend(features.tensors)
        with lent:
            parts = features.parts(lent.packed)
            if ask.delivery == CORE:
                subject = self._subjects.fresh(info.model, info.version, 1)
                ask.stored = False
                if inbox := self._short_cut(near, ANY, FEW_FRESH, ask):
                    posted = partial(self._posted, ask, subject, parts, reply, lent)
                    self._direct.post(inbox, subject, parts, posted)
                else:
                    self._publish_fresh(ask, subject, parts, reply, lent)
                return
            lane = ANY
            if self.picker is not None:
                lane = self.picker.pick_lane(ask, ask.deadline - now)
            subject = self._subjects.features(info.model, info.version, 1, lane)
            inbox = self._short_cut(near, lane, FEW, ask)
            if inbox and self._direct.send(inbox, subject, parts):
                lent.keep()  # a head start
            ask.lent = lent
            self._store(ask, subject, parts, features.message_id, lent)

    def _posted(
        self, ask: Ask, subject: str, parts: list[Part], reply: str, lent: Lent, sent: bool
    ) -> None:
        if self._asks.get(reply) is not ask:  # given up within the burst
            if sent:
                self._cancel(ask)
            else:
                lent.take_back()
            return
        if sent:
            self._went(ask, lent)
            return
        try:
            with lent:
                self._publish_fresh(ask, subject, parts, reply, lent)
        except SwarmError as error:
            ask.settle(error)

    def _publish_fresh(
        self, ask: Ask, subject: str, parts: list[Part], reply: str, lent: Lent
    ) -> None:
        """By the server. Raises `NotConnected`, `ResourceExhausted`."""
        self._link.publish(subject, parts, reply)
        self._went(ask, lent)

    def _went(self, ask: Ask, lent: Lent) -> None:
        ask.stored = True  # as much as it ever is in fast mode
        ask.sent += 1
        ask.lent = lent
        if self._claims is not None:
            self._claims.collect()

    def _short_cut(self, near: Near, lane: str, few: int, ask: Ask) -> str:
        """The inbox of the node of this host that takes the message; "" for the server's way, which
        every attempt but the first goes."""
        if ask.attempt > 1 or len(self._asks) > few or not self._link.connected:
            return ""
        inbox = near.inboxes.get(lane, "")
        if inbox and self.gate(ask.info).silences.doubtful(time.monotonic()):
            return ""
        return inbox

    def _store(
        self, ask: Ask, subject: str, parts: list[Part], message_id: str, lent: Lent
    ) -> None:
        """Publish into a lane of stage 1."""
        attempt = ask.attempt

        def stored(error: SwarmError | None, sequence: int) -> None:
            if error is None:
                ask.stored = True
                if self._claims is not None:
                    self._claims.collect()
                return
            lent.take_back()
            if attempt == ask.attempt:
                ask.stored = False
                ask.settle(error)

        ask.stored = False
        self._publisher.publish(subject, parts, message_id, stored)
        ask.sent += 1

    def _cancel(self, ask: Ask) -> None:
        """Nobody waits any more: an attempt that is still on its way need not be computed."""
        with contextlib.suppress(SwarmError):  # it only saves work
            subject = self._subjects.cancel(ask.info.model, ask.info.version)
            self._link.publish(subject, ask.id.encode())

    async def _last_chance(self, ask: Ask, failed: Result) -> Result:
        """No retry is left; an earlier attempt may still be answered inside the budget."""
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
            ask.lent.take_back()  # each try lends anew, and there may be many within a second
            ask.settle(NoResponders("no node serves the next stage at present"))
            return
        try:
            result = Result.decode(message.data)
            if self._claims is not None:
                self._claims.take(result.outputs)
        except (DecodeError, ShmError) as error:
            # An answer that cannot be read is as good as lost: ask again.
            result = ask.failed(Unavailable(f"the answer cannot be read: {error}"))
        if result.id == ask.id:
            self.gate(ask.info).silences.heard()
            if result.status is Status.OK and ask.attempt == 1:
                # Whoever still gets the message computes in vain, and may as well fail: the next
                # request is written where this one was, into memory that the caches hold.
                ask.lent.unread()
                ask.lent.take_back()
            ask.settle(result)

    def _reconnected(self) -> None:
        """The server may have lost what it kept in memory: ask again at once, same id."""
        for ask in self._asks.values():
            ask.stored = False
            ask.settle(None)

    def close(self) -> None:
        if self._reconnected in self._link.on_up:
            self._link.on_up.remove(self._reconnected)
