"""A request to whichever node serves `infer.<model>`, instead of to the lanes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import replace

from swarm.errors import (
    ApiError,
    DeadlineExceeded,
    NoResponders,
    NotConnected,
    NotFound,
    PermissionDenied,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.link import Link, LinkMessage, jetstream
from swarm.link.grants import EVERYTHING
from swarm.link.types import Carrier
from swarm.requests.cancels import word
from swarm.requests.request import refused
from swarm.requests.retry import RetryBudget
from swarm.requests.sessions import SeenWeights
from swarm.subjects import TOKEN, Subjects, kv_get_subject
from swarm.wire.messages import Request, Result

# After so much of its budget without an answer a request is sent once more, with its id.
SILENCE_SHARE = 0.4
LEAST_PATIENCE = 0.25  # seconds

# How a node answers that has waited in vain for weights. Without an answer, nothing is known about
# its weights.
_PERHAPS_BEHIND = {Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED}


class ByService:
    """Asks in the name of `agent`; seen: the weight versions that sessions have seen."""

    def __init__(self, carrier: Carrier, subjects: Subjects, seen: SeenWeights, agent: str) -> None:
        self._carrier = carrier
        self._subjects = subjects
        self._seen = seen
        self._agent = agent
        self._retries = RetryBudget()

    async def ask(self, model: str, request: Request, budget: float) -> Result:
        """See `swarm.client.Client.ask_service`. A failure is a `Result` too."""
        name, _, version = model.partition("@")
        session = (name, version, self._agent, request.session)
        weights = request.weights
        if request.session:
            weights = max(weights, self._seen.least(session))
        request = replace(
            request,
            version=version,
            budget=budget,
            agent=request.agent or self._agent,
            weights=weights,
            key=secrets.token_hex(16),
        )
        started = time.perf_counter()
        from_node = False
        try:
            if budget <= 0:
                raise DeadlineExceeded(f"a budget of {budget} s leaves no time at all")
            async with asyncio.timeout(budget):
                message = await self._ask_any(name, request, budget)
            result = Result.decode(message.data)
            from_node = True
        except NoResponders:
            result = refused(request.id, name, Unavailable(f"no node serves {name!r} at present"))
            result.reached = False
        except (SwarmError, TimeoutError) as failure:
            result = refused(request.id, name, failure)
        except asyncio.CancelledError:
            self._cancel(name, request)
            raise
        result.latency = time.perf_counter() - started
        if request.session and result.status is Status.OK:
            self._seen.saw(session, result.weights)
        elif request.session and from_node and result.status in _PERHAPS_BEHIND:
            self._seen.lacked(session, weights)  # perhaps: the answer does not always say so
        return result

    def _cancel(self, model: str, request: Request) -> None:
        """Nobody waits for the answer any more: whoever has the request need not compute it."""
        subject = self._subjects.cancel_asked(model)
        if self._carrier.grants.may_publish(subject):
            with contextlib.suppress(SwarmError):  # it only saves work
                self._carrier.publish(subject, word(request))

    async def _ask_any(self, model: str, request: Request, budget: float) -> LinkMessage:
        """The answer of whichever node serves `infer.<model>`; asked again after silence, where the
        retries are not spent, and after each loss of the connection. Raises what `Link.request`
        raises, except `NotConnected`."""
        while True:
            await self._carrier.ready()
            with contextlib.suppress(NotConnected):
                return await self._ask_twice(self._subjects.infer(model), request, budget)

    async def _ask_twice(self, subject: str, request: Request, budget: float) -> LinkMessage:
        """The first answer. A node that hangs swallows what it is given, and keeps silent."""
        loop = asyncio.get_running_loop()
        began, data = loop.time(), request.parts()
        self._retries.on_requests(1, began)
        first = loop.create_task(self._carrier.request(subject, data, budget))
        asked = [first]
        try:
            patience = max(LEAST_PATIENCE, SILENCE_SHARE * budget)
            done, _ = await asyncio.wait(asked, timeout=patience)
            if not done and patience < budget and self._retries.try_retry(loop.time()):
                left = budget - (loop.time() - began)
                again = replace(request, budget=left).parts()
                asked.append(loop.create_task(self._carrier.request(subject, again, left)))
            while True:
                done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if task.exception() is None]
                if good or not waiting:
                    return await (good[0] if good else first)
                asked = list(waiting)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(first, *asked, return_exceptions=True)


class ServiceRequester(ByService):
    """The requester of a client that asks the lanes where its rights allow it, and otherwise the
    service."""

    def __init__(self, link: Link, subjects: Subjects, seen: SeenWeights, agent: str) -> None:
        super().__init__(link, subjects, seen, agent)
        self._link = link
        self._denied: set[str] = set()  # models whose registry entry this user may not read
        link.on_up.append(self._denied.clear)  # it may come back with other rights

    def is_only_way(self, model: str) -> bool:
        """Whether this user has to ask the service: it may not read which version serves the model,
        or may not send to its first stage, or is in an account where it can do neither."""
        name = model.partition("@")[0]
        grants = self._link.grants
        if name in self._denied or grants is EVERYTHING or TOKEN.fullmatch(name) is None:
            return name in self._denied
        bucket = self._subjects.config_bucket
        reads = self._link.in_domain(kv_get_subject(bucket, f"serve.{name}"))
        sends = self._subjects.features(name, "0", 1)
        return not (grants.may_publish(reads) and grants.may_publish(sends))

    async def instead(
        self, model: str, request: Request, deadline: float, error: BaseException
    ) -> Result:
        """The result of a request that failed by `error` before it was sent: the service's, where
        this user can ask that alone. deadline: the loop's time."""
        denied = isinstance(error, PermissionDenied)  # the server did not tell the rights before
        failed = refused(request.id, model, error)
        if not denied and not await self._has_no_registry(error):
            return failed
        result = await self.ask(model, request, deadline - asyncio.get_running_loop().time())
        if not denied and not result.reached:
            return failed
        self._denied.add(model.partition("@")[0])
        return result

    def forget(self) -> None:
        """What serves the models has changed, or may be readable now."""
        self._denied.clear()

    async def _has_no_registry(self, error: BaseException) -> bool:
        """Whether a look-up failed because this user's account has no registry at all. The mesh may
        be in another account, of which this one imports the service alone."""
        if isinstance(error, ApiError):
            return error.err_code in jetstream.OFF
        if not isinstance(error, NotFound):
            return False
        bucket = f"KV_{self._subjects.config_bucket}"
        with contextlib.suppress(SwarmError):  # then there is one, or that is unknown
            return not await jetstream.stream_exists(self._link, bucket)
        return False
