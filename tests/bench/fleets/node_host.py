"""Many nodes in one helper process.

The nodes are real (`nodes.life.node.Node`: lanes, gossip, status, services, two connections each),
but their stages have no layers: a stage passes on the tensors that it receives. So the figures are
of the mesh alone, and a hundred nodes fit into two processes.

It tells its resident bytes before it makes any node, and again when all are ready.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import psutil

from bench.helpers import arguments, input_ended, tell
from nodes.config import NodeConfig
from nodes.event_loop import run_event_loop
from nodes.life.node import Node

STARTING_AT_ONCE = 8
"""Nodes that start together; a hundred at once would only wait for each other."""
READY_TIMEOUT = 120.0  # seconds


async def serve(url: str, mesh: str, nodes: list[tuple[str, str, str]]) -> None:
    """Run the nodes (id, role, model) until standard input ends, then drain them."""
    stop = asyncio.Event()
    tell(psutil.Process().memory_info().rss)
    slots = asyncio.Semaphore(STARTING_AT_ONCE)
    ready: list[asyncio.Task[None]] = []

    async def begin(node: Node, group: asyncio.TaskGroup) -> None:
        async with slots, asyncio.timeout(READY_TIMEOUT):
            group.create_task(node.run(stop), name=node.id)
            await node.became_ready.wait()

    async with asyncio.TaskGroup() as group:
        for name, role, model in nodes:
            # The nodes stand for devices of a fleet: every message goes through the server.
            config = NodeConfig(
                role,
                model,
                nats=url,
                mesh=mesh,
                node=name,
                stored=True,
                no_cache=True,
                allow_unsigned=True,
            )
            ready.append(group.create_task(begin(Node(config), group)))
        await asyncio.gather(*ready)
        tell(psutil.Process().memory_info().rss)
        await input_ended()
        stop.set()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr)
    run_event_loop(serve(*arguments()))
