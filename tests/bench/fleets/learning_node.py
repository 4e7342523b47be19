"""A node that is told which weights to take: the helper of one stage of `swarm bench weights`.

{"take": N}   make the tensors of version N, and take them: {"taken", "ms"}
{}            nothing runs: {"mb"}, memory of its own
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.fleets.weight_updates import CASES
from bench.helpers import arguments, commands, tell
from nodes.config import NodeConfig
from nodes.event_loop import run_event_loop
from nodes.life.node import Node
from nodes.low_priority import in_low_priority_thread
from shards.runtimes.ort import trim_memory

VERSION = "1"


async def _main(words: dict[str, Any]) -> int:
    config = NodeConfig(
        role=words["role"],
        model=words["model"],
        mesh=words["mesh"],
        nats=words["url"],
        device="cpu",
        no_cache=True,
        allow_unsigned=True,
        # Answers are compared bit by bit with the whole model's: they are computed one by one, and
        # at the level at which a shard computes the very bits of the whole.
        max_batch=1,
        level="basic",
    )
    node = Node(config)
    artifact = Path(words["file"]).read_bytes()  # noqa: ASYNC240 - nothing runs yet
    changes = CASES[words["case"]].changes
    stop = asyncio.Event()
    life = asyncio.create_task(node.run(stop))
    await asyncio.wait(
        {life, asyncio.create_task(node.became_ready.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    tell({})
    async for order in commands():
        if number := order.get("take"):
            tensors = await in_low_priority_thread(partial(changes, artifact, number))
            began = time.perf_counter()
            taken = await node.weights.take(config.model, VERSION, number, tensors)
            tell({"taken": taken, "ms": (time.perf_counter() - began) * 1e3})
            del tensors
        else:
            trim_memory()
            tell({"mb": _own_memory() / 1e6})
    stop.set()
    await life
    return 0


def _own_memory() -> int:
    """Bytes of the process that lie in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not say how much memory a process has (RssAnon)")


if __name__ == "__main__":
    raise SystemExit(run_event_loop(_main(arguments())))
