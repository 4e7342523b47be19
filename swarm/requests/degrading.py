"""Asks a version's lighter model where the version cannot answer in time.

The lighter model is one of the mesh, with nodes of its own: it answers when all nodes of a stage
are gone, and whoever can ask the one can ask the other. The decisions are in
`swarm.requests.lighter`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swarm.errors import InvalidArgument, PermissionDenied, Status, SwarmError
from swarm.link import Link
from swarm.model import ModelInfo, lighter_misfit
from swarm.models.catalog import Catalog
from swarm.requests.lighter import LIGHTER_ANSWERS, is_replaced, kept_free
from swarm.requests.request import Ask
from swarm.requests.requester import Requester
from swarm.requests.stood_in import in_place_of
from swarm.wire.messages import Request, Result
from swarm.wire.urgency import urgency_of

LOOK_UP_SHARE = 0.25  # of a budget, for the question which version of the lighter model serves
LOOK_AGAIN = 5.0  # seconds after a look-up that failed
MOST_REMEMBERED = 64  # of either kind


class Degrading:
    """Owned by a client."""

    def __init__(self, link: Link, catalog: Catalog, requester: Requester) -> None:
        self._link = link
        self._catalog = catalog
        self._requester = requester
        self._lacking: dict[str, tuple[str, float]] = {}  # why there is no such model, until when
        self._misfits: dict[tuple[str, str, str, str], str] = {}

    async def answer(
        self,
        info: ModelInfo,
        request: Request,
        agent: str,
        deadline: float,
        ask: Callable[[float], Awaitable[Result]],
    ) -> Result:
        """The version's answer; else the lighter model's, which `degraded` marks; else the
        version's failure. ask(until): asks the version, and raises no `SwarmError`. deadline,
        until: in the loop's time."""
        now = asyncio.get_running_loop().time
        began = now()
        lighter, why = await self._found(info, request, agent, deadline)
        if lighter is None:
            result = await ask(deadline)
            if why and result.status in LIGHTER_ANSWERS:
                result.message += f"; its lighter model cannot answer: {why}"
            return result
        latency = self._requester.admission(lighter).latency
        p99 = latency.percentile(0.99, time.monotonic())
        failed = await ask(deadline - kept_free(deadline - now(), p99, latency.count))
        if not is_replaced(failed.status, deadline - now()):
            return failed
        result = await self._requester.infer(
            Ask(
                lighter,
                request.inputs,
                deadline,
                agent=agent,
                session=request.session,
                traceparent=request.traceparent,
                urgency=urgency_of(request.priority),
                share=request.share,
                instead=in_place_of(info.model, info.version, str(failed.status)),
            )
        )
        if result.status is not Status.OK:
            failed.message += (
                f"; its lighter model {lighter.model}@{lighter.version} does not answer either: "
                f"{result.status}: {result.message}"
            )
            return failed
        result.degraded = True
        result.message = f"degraded: {failed.status}: {failed.message}"
        result.id, result.reached = failed.id, failed.reached
        result.latency = now() - began
        return result

    async def _found(
        self, info: ModelInfo, request: Request, agent: str, deadline: float
    ) -> tuple[ModelInfo | None, str]:
        """The lighter model, or why it cannot be asked."""
        name = str(info.lighter)
        found = self._catalog.known(name, agent, request.session, request.id)
        if found is None:
            now = asyncio.get_running_loop().time()
            why, until = self._lacking.get(name, ("", 0.0))
            if now < until:
                return None, why
            by = now + (deadline - now) * LOOK_UP_SHARE
            try:
                async with asyncio.timeout_at(by):
                    found = await self._catalog.look_up(
                        self._link, name, agent, request.session, request.id, by
                    )
            except (SwarmError, TimeoutError) as error:
                why = str(error) or f"{name} could not be looked up"
                if isinstance(error, PermissionDenied):
                    model = name.partition("@")[0]
                    why = (
                        f"{agent or 'this user'} may not ask {name}: `swarm auth add` with "
                        f"--model {model} too; with --asks {model}, for who serves {info.model}"
                    )
                _bounded(self._lacking)[name] = why, now + LOOK_AGAIN
                return None, why
        key = info.model, info.version, found.model, found.version
        misfit = self._misfits.get(key)
        if misfit is None:
            misfit = lighter_misfit(info, found)
            _bounded(self._misfits)[key] = misfit
        if misfit:
            return None, misfit
        try:
            found.check(request.inputs, pictures=True)
        except InvalidArgument as error:
            return None, str(error)
        return found, ""


def _bounded(known: dict[Any, Any]) -> dict[Any, Any]:
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    return known
