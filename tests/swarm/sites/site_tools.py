"""Two linked servers, a mesh that answers by itself, and a forwarder, for the tests of sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from support.linked_sites import SITE

import swarm
from swarm.errors import Status
from swarm.sites.forwarder import Ask, Forwarder
from swarm.wire.messages import Request, Result


def numbered(number: int) -> dict[str, np.ndarray]:
    return {"x": np.array([number], np.int64)}


async def doubled(model: str, request: Request) -> Result:
    """A mesh of one model."""
    if model != "m":
        return Result(request.id, model, status=Status.NOT_FOUND, message=f"no model {model!r}")
    return Result(request.id, model, outputs={"y": request.inputs["x"] * 2})


@asynccontextmanager
async def forwarding(client: swarm.Mesh, ask: Ask = doubled) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder(client.link, client.subjects, SITE, ask)
    task = asyncio.create_task(forwarder.run())
    try:
        yield forwarder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def read(client: swarm.Mesh, agent: str, count: int) -> list[swarm.Answer]:
    """The next answers to an agent, which count as read."""
    found: list[swarm.Answer] = []
    answers = client.results(agent)
    async with asyncio.timeout(30):
        async for answer in answers:
            found.append(answer)
            if len(found) == count:
                await answers.read()
                break
    return found
