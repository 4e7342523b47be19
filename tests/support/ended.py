"""Nodes, clients and loops beside a connection that has ended: what they take of a core then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import swarm
from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.life.node import Node
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from support.waiting import GENEROUS
from swarm.errors import SwarmError

NOWHERE = "nats://127.0.0.1:9"
MOST_OF_A_CORE = 0.25  # a loop without a pause takes all that there is; an idle node a hundredth
WATCHED_FOR = 0.6  # seconds

Loop = Callable[[swarm.Mesh, Path], Awaitable[Any]]


@cache
def digits() -> SplitResult:
    return split(digits_model(), name="digits", version="1", stages=2, profile=False)


async def serve_digits(client: swarm.Mesh) -> None:
    result = digits()
    await client.registry.push(result.manifest.to_json(), result.files)
    await client.registry.promote("digits", "1")


def node_of(role: str, url: str, *parts: object, **more: Any) -> Node:
    """parts: settings of features."""
    model = "" if role == "gateway" else "digits"
    settings = {"shm": False, "no_cache": True, "allow_unsigned": True} | more
    return Node(NodeConfig(role, model, nats=url, parts=parts, **settings))


async def share_of_a_core(seconds: float = WATCHED_FOR) -> float:
    """Of this thread, while others of its tasks run."""
    began = time.thread_time()
    await asyncio.sleep(seconds)
    return (time.thread_time() - began) / seconds


async def end_idle(nodes: Iterable[Node]) -> None:
    """All that nodes do at once: they do not see here that their connections have ended."""
    real, stop, nodes = Connection._run_link, asyncio.Event(), list(nodes)  # noqa: SLF001

    async def unseen(self: Connection) -> None:
        await self.mesh.link.run()

    Connection._run_link = unseen  # type: ignore[method-assign]  # noqa: SLF001
    try:
        running = [asyncio.create_task(each.run(stop)) for each in nodes]
        ready = asyncio.gather(*(each.became_ready.wait() for each in nodes))
        await asyncio.wait_for(ready, GENEROUS)
        for each in nodes:
            await each.mesh.link.close()
        assert await share_of_a_core(1.0) < MOST_OF_A_CORE
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), GENEROUS)
    finally:
        Connection._run_link = real  # type: ignore[method-assign]  # noqa: SLF001


async def ended_client() -> swarm.Mesh:
    client = swarm.connect(NOWHERE)
    await client.link.close()
    return client


async def none_turn(loops: Mapping[str, Loop], folder: Path) -> None:
    """Each of these loops waits, or ends with an error, beside a connection that has ended."""

    async def begun(names: Iterable[str]) -> list[asyncio.Future[Any]]:
        client = await ended_client()
        return [asyncio.ensure_future(loops[name](client, folder)) for name in names]

    async def ended(running: list[asyncio.Future[Any]]) -> None:
        for each in running:
            each.cancel()
        for end in await asyncio.gather(*running, return_exceptions=True):
            assert end is None or isinstance(end, SwarmError | asyncio.CancelledError), end

    running = await begun(loops)
    share = await share_of_a_core()
    await ended(running)
    if share >= MOST_OF_A_CORE:  # which one?
        for name in loops:
            running = await begun([name])
            assert await share_of_a_core() < MOST_OF_A_CORE, name
            await ended(running)
    assert share < MOST_OF_A_CORE
