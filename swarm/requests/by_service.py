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
from swarm.requests.request import refused
from swarm.requests.sessions import SeenWeights
from swarm.subjects import Subjects
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
