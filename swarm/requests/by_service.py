"""A request to whichever node serves `infer.<model>`, instead of to the lanes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

from swarm.errors import (
    DeadlineExceeded,
    NoResponders,
    NotConnected,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.link import Link, LinkMessage
from swarm.link.grants import EVERYTHING
from swarm.requests.request import refused
from swarm.requests.sessions import SeenWeights
from swarm.subjects import TOKEN, Subjects, kv_get_subject
from swarm.wire.messages import Request, Result

# How a node answers that waits in vain for weights. Where none answered, nothing is known of them.
_PERHAPS_BEHIND = {Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED}


class ServiceRequester:
    """Asks in the name of `agent`; seen: the weight versions that sessions have seen."""

    def __init__(self, link: Link, subjects: Subjects, seen: SeenWeights, agent: str) -> None:
        self._link = link
        self._subjects = subjects
        self._seen = seen
        self._agent = agent
        self._denied: set[str] = set()  # models whose registry entry this user may not read
        link.on_up.append(self._denied.clear)  # it may come back with other rights

    def is_only_way(self, model: str) -> bool:
        """Whether this user may not read what serves the model, or not send to its first stage."""
        name = model.partition("@")[0]
        grants = self._link.grants
        if grants is EVERYTHING or TOKEN.fullmatch(name) is None:
            return name in self._denied
        bucket = self._subjects.config_bucket
        reads = self._link.in_domain(kv_get_subject(bucket, f"serve.{name}"))
        sends = self._subjects.features(name, "0", 1)
        return not (grants.may_publish(reads) and grants.may_publish(sends))

    def denied(self, model: str) -> None:
        """The server has refused to let this user read what serves the model."""
        self._denied.add(model.partition("@")[0])

    async def ask(self, model: str, request: Request, budget: float) -> Result:
        """See `swarm.mesh.Mesh.ask_service`. A failure is a `Result` too."""
        name, _, version = model.partition("@")
        session = (name, version, self._agent, request.session)
        weights = request.weights
        if request.session:
            weights = max(weights, self._seen.least(session))
        request = replace(
            request, version=version, budget=budget, agent=self._agent, weights=weights
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
        except (SwarmError, TimeoutError) as failure:
            result = refused(request.id, name, failure)
        result.latency = time.perf_counter() - started
        if request.session and result.status is Status.OK:
            self._seen.saw(session, result.weights)
        elif request.session and from_node and result.status in _PERHAPS_BEHIND:
            self._seen.lacked(session, weights)  # perhaps: the answer does not always say so
        return result

    async def _ask_any(self, model: str, request: Request, budget: float) -> LinkMessage:
        """The answer of whichever node serves `infer.<model>`; asked again after each loss of the
        connection. Raises what `Link.request` raises, except `NotConnected`."""
        while True:
            await self._link.ready()
            with contextlib.suppress(NotConnected):
                subject = self._subjects.infer(model)
                return await self._link.request(subject, request.parts(), budget)
