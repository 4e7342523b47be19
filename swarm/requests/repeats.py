"""A request that its client repeats, after silence: it joins the one that still runs here.

A request that has ended is computed anew, which gives the same answer. A kept answer would tell a
health probe that all is well after it no longer is. An id alone says nothing: clients use ids again
for other requests, and another client can guess one. Whoever has all the inputs gets what he could
compute with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from swarm.errors import DeadlineExceeded
from swarm.wire.messages import Request, Result

_Key = tuple[str, str, str, str, str, str, int, tuple[str, ...]]


class Repeats:
    """`answer` in place of the function that it is made with."""

    def __init__(self, answer: Callable[[str, Request], Awaitable[Result]]) -> None:
        self._answer = answer
        self._running: dict[_Key, tuple[Request, asyncio.Future[Result]]] = {}
        self.joined = 0

    async def answer(self, model: str, request: Request) -> Result:
        """Raises as the function does, and `DeadlineExceeded` for one that has joined another one
        when its own budget ends."""
        if not request.id:
            return await self._answer(model, request)
        who = request.agent, request.session, request.key
        what = request.version, request.weights, request.outputs
        key = (model, request.id, *who, *what)
        running = self._running.get(key)
        if running is not None and _same(running[0], request):
            self.joined += 1
            return await _joined(running[1], request.budget)
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_seen)
        self._running[key] = request, outcome
        try:
            result = await self._answer(model, request)
            outcome.set_result(result)
        except Exception as error:
            outcome.set_exception(error)
            raise
        finally:
            outcome.cancel()
            if self._running.get(key, (None,))[0] is request:
                del self._running[key]
        return result


async def _joined(outcome: asyncio.Future[Result], budget: float | None) -> Result:
    try:
        async with asyncio.timeout(budget):
            return replace(await asyncio.shield(outcome))
    except TimeoutError:
        text = "the budget ended before the same request, which came earlier, had its answer"
        raise DeadlineExceeded(text) from None


def _seen(outcome: asyncio.Future[Result]) -> None:
    """Mark the failure as seen: where no other request has joined, only the first one raises it."""
    if not outcome.cancelled():
        outcome.exception()


def _same(one: Request, other: Request) -> bool:
    """Whether two requests have the same inputs."""
    if one.inputs.keys() != other.inputs.keys():
        return False
    pairs = [(array, other.inputs[name]) for name, array in one.inputs.items()]
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs
    )
