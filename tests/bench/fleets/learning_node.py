"""A node that is told which weights to take: the process of one stage in the benchmark.

    python -m bench.fleets.learning_node '{"role", "model", "url", "mesh", "case", "file"}'

Orders come on standard input, one a line, and each is answered with a line of JSON:

    take N     make the tensors of version N, take them   {"taken", "ms"}
    memory     nothing runs                               {"mb"}: memory of its own

The first line of output says that the node is ready. The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.fleets.weight_updates import CASES
from nodes.config import NodeConfig
from nodes.event_loop import run_event_loop
from nodes.life.node import Node
from nodes.low_priority import in_low_priority_thread
from shards.runtimes.ort import trim_memory

VERSION = "1"


async def _main(arguments: dict[str, Any]) -> int:
    config = NodeConfig(
        role=arguments["role"],
        model=arguments["model"],
        mesh=arguments["mesh"],
        nats=arguments["url"],
        device="cpu",
        no_cache=True,
        allow_unsigned=True,
        # Answers are compared bit by bit with the whole model's: they are computed one by one, and
        # at the level at which a shard computes the very bits of the whole.
        max_batch=1,
        level="basic",
    )
    node = Node(config)
    artifact = Path(arguments["file"]).read_bytes()  # noqa: ASYNC240 - nothing runs yet
    changes = CASES[arguments["case"]].changes
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    stop = asyncio.Event()
    life = asyncio.create_task(node.run(stop))
    await asyncio.wait(
        {life, asyncio.create_task(node.became_ready.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    print("{}", flush=True)
    while order := (await reader.readline()).decode().split():
        answer: dict[str, Any]
        if order[0] == "take":
            number = int(order[1])
            tensors = await in_low_priority_thread(partial(changes, artifact, number))
            began = time.perf_counter()
            taken = await node.weights.take(config.model, VERSION, number, tensors)
            answer = {"taken": taken, "ms": (time.perf_counter() - began) * 1e3}
            del tensors
        else:
            trim_memory()
            answer = {"mb": _own_memory() / 1e6}
        print(json.dumps(answer), flush=True)
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
    raise SystemExit(run_event_loop(_main(json.loads(sys.argv[1]))))
