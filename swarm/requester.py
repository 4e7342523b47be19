"""The requester's side of a request: send, wait, retry inside the budget, take the first answer.

A stage that dies is not the requester's business: its lane hands the work on. What is
retried here is what no lane can know of: a request that was never stored (no stream, no
connection), one that a restarted server lost from memory, and an answer that was lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from swarm.errors import DecodeError, NotConnected, ResourceExhausted, Status, SwarmError
from swarm.flow.backoff import full_jitter
from swarm.flow.retry import RetryBudget
from swarm.ids import ulid
from swarm.lanes import Publisher
from swarm.link import Link, LinkMessage
from swarm.messages import Features, Result
from swarm.model import ModelInfo
from swarm.subjects import ANY, Subjects

# An answer that is missing after this part of the budget, and at least so many seconds, was
# probably lost: lanes recover from a dead node within an ack_wait, well before it.
RETRY_AFTER_SHARE = 0.4
RETRY_AFTER_LEAST = 0.25


@dataclass(slots=True)
class Ask:
    """One request on its way: what to send, and what has come of it."""

    info: ModelInfo
    tensors: Mapping[str, np.ndarray]
    deadline: float  # loop time, seconds
    id: str = field(default_factory=ulid)
    agent: str = ""
    session: str = ""
    sequence: int = 0
    traceparent: str = ""
    attempt: int = 0
    stored: bool = False
    hops: list[dict[str, object]] = field(default_factory=list)
    outcome: asyncio.Future[Result | SwarmError | None] | None = None


PickLane = Callable[[Ask], str]


class Requester:
    """Owned by a mesh or a node; safe for any number of concurrent requests.

    pick_lane: the routing policy for stage 1; the shared lane when it is not given.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        pick_lane: PickLane | None = None,
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._publisher = publisher
        self._pick_lane = pick_lane
        self._budget = RetryBudget(ratio=0.1, min_per_s=5.0)
        self._rng = random.Random()
        self._asks: dict[str, Ask] = {}  # by reply subject
        self.retries = 0
        self.late = 0  # answers that came when nobody waited any more
        link.on_up.append(self._reconnected)

    async def infer(self, ask: Ask) -> Result:
        """The result, failed or not. Never raises a `SwarmError`: a failure is a result."""
        started = time.perf_counter()  # uvloop's own clock has steps of a millisecond
        reply = self._link.expect(self._answer)
        self._asks[reply] = ask
        try:
            async with asyncio.timeout_at(ask.deadline):
                result = await self._attempts(ask, reply)
        except TimeoutError:
            result = _expired(ask)
        finally:
            self._link.forget(reply)
            del self._asks[reply]
        result.latency = time.perf_counter() - started
        return result

    async def _attempts(self, ask: Ask, reply: str) -> Result:
        loop = asyncio.get_running_loop()
        self._budget.on_request(time.monotonic())
        while True:
            outcome = await self._attempt(ask, reply, loop)
            if isinstance(outcome, Result):
                if outcome.status is not Status.UNAVAILABLE:
                    return outcome
                failed: Result = outcome
            elif outcome is None:
                failed = _expired(ask)  # silence, or a reconnect: ask again
            else:
                failed = _failed(ask, outcome)
                if isinstance(outcome, ResourceExhausted):
                    return failed  # a full lane is a fast answer: waiting is the caller's choice
            unsent = not ask.stored
            if not unsent and not self._budget.try_retry(time.monotonic()):
                return await self._last_chance(ask, failed)
            self.retries += 1
            pause = full_jitter(ask.attempt, self._rng, base_s=0.005, cap_s=0.1)
            if loop.time() + pause >= ask.deadline:
                return await self._last_chance(ask, failed)
            if isinstance(outcome, NotConnected):
                await self._link.ready()
            elif outcome is not None:
                await asyncio.sleep(pause)

    async def _attempt(
        self, ask: Ask, reply: str, loop: asyncio.AbstractEventLoop
    ) -> Result | SwarmError | None:
        """A result, the reason why it could not be sent, or None: no answer in good time."""
        ask.attempt += 1
        ask.outcome = loop.create_future()
        try:
            self._send(ask, reply, loop.time())
        except SwarmError as error:
            return error
        share = max(RETRY_AFTER_LEAST, (ask.deadline - loop.time()) * RETRY_AFTER_SHARE)
        if loop.time() + share >= ask.deadline:
            return await ask.outcome  # too short a budget for a second attempt
        timer = loop.call_later(share, _settle, ask, None)
        try:
            return await ask.outcome
        finally:
            timer.cancel()

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
        lane = ANY if self._pick_lane is None else self._pick_lane(ask)
        attempt = ask.attempt

        def stored(error: SwarmError | None, sequence: int) -> None:
            if error is None:
                ask.stored = True
            elif attempt == ask.attempt:
                ask.stored = False
                _settle(ask, error)

        ask.stored = False
        subject = self._subjects.features(info.model, info.version, 1, lane)
        self._publisher.publish(subject, features.parts(), features.message_id, stored)

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
            self.late += 1
            return
        try:
            result = Result.decode(message.data)
        except DecodeError as error:
            result = _failed(ask, error)
        if result.id == ask.id:
            _settle(ask, result)

    def _reconnected(self) -> None:
        """The server may have lost what it kept in memory: ask again at once, same id."""
        for ask in self._asks.values():
            ask.stored = False
            _settle(ask, None)

    def close(self) -> None:
        if self._reconnected in self._link.on_up:
            self._link.on_up.remove(self._reconnected)


def _settle(ask: Ask, outcome: Result | SwarmError | None) -> None:
    if ask.outcome is not None and not ask.outcome.done():
        ask.outcome.set_result(outcome)


def _failed(ask: Ask, error: SwarmError) -> Result:
    return Result(
        id=ask.id,
        model=ask.info.model,
        version=ask.info.version,
        status=error.status,
        message=str(error),
        attempt=ask.attempt,
    )


def _expired(ask: Ask) -> Result:
    where = "it was stored in the first lane" if ask.stored else "it could not be stored"
    return Result(
        id=ask.id,
        model=ask.info.model,
        version=ask.info.version,
        status=Status.DEADLINE_EXCEEDED,
        message=f"no answer inside the budget ({where}, {ask.attempt} attempt(s)); "
        "`swarm status` shows which stages have a ready node",
        attempt=ask.attempt,
    )
