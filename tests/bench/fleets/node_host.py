"""Many nodes in one process: `python -m bench.fleets.node_host <url> <mesh> <nodes as JSON>`.

The nodes are real (`nodes.life.node.Node`: lanes, gossip, status, services, two connections each),
but their stages have no layers: a stage passes on the tensors that it receives. So the figures are
of the mesh alone, and a hundred nodes fit into two processes.

`<nodes>` is a list of `[node id, role, model]`. The process prints a line of JSON before it makes
any node and another line when all nodes are ready, both with `rss` in bytes. It ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

import psutil

from nodes.config import NodeConfig
from nodes.event_loop import die_with_parent, run_event_loop
from nodes.life.node import Node

STARTING_AT_ONCE = 8
"""Nodes that start together; a hundred at once would only wait for each other."""
READY_TIMEOUT = 120.0  # seconds


async def serve(url: str, mesh: str, nodes: list[tuple[str, str, str]]) -> None:
    """Run the nodes until standard input ends, then drain them."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: stop.set() if not sys.stdin.read() else None)
    _report("up")
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
        _report("ready")


def _report(event: str) -> None:
    rss = psutil.Process().memory_info().rss
    print(json.dumps({"event": event, "rss": rss}), flush=True)


def main(arguments: list[str]) -> int:
    """Entry point."""
    if sys.platform == "linux":
        die_with_parent()
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stderr)
    url, mesh, nodes = arguments
    run_event_loop(serve(url, mesh, [tuple(entry) for entry in json.loads(nodes)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
