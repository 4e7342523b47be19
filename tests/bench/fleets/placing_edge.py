"""The edge of `swarm bench plan`, on its side of the link: asks by every way in turn.

It says when it is ready, settles on a command, and measures on the next one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.helpers import arguments, commands, tell
from nodes.config import EdgeOptions, NodeConfig
from nodes.life.node import Node
from nodes.placing.ways import AUTO, ways_of
from nodes.requests.answering import InferAnswerer
from nodes.requests.placer import Placer
from swarm.errors import Status
from swarm.wire.messages import Request

BUDGET = 20.0  # seconds
# Seconds before each request: a quota that one request has used up is no matter of the next one's.
PAUSE = 0.03


async def main(
    url: str, mesh: str, trust: str, model: str, shape: list[int], auto_alone: int
) -> None:
    options = EdgeOptions(placement=AUTO, allow_picture=True)
    config = NodeConfig(
        "edge",
        model,
        nats=url,
        mesh=mesh,
        edge=options,
        shm=False,
        budget=BUDGET,
        trust=trust,
        no_cache=True,
    )
    stop = asyncio.Event()
    node = Node(config)
    life = asyncio.create_task(node.run(stop))
    await node.became_ready.wait()
    version = await node.mesh.catalog.version_for(model, "", "", "")
    loaded = await node.answerer.lookup(model, version)
    answerers: dict[str, InferAnswerer] = {AUTO: node.answerer}
    for way in ways_of(loaded.info, loaded.local):
        options = EdgeOptions(placement=way.name, allow_picture=True)
        fixed = Placer(options, node.mesh, lambda: ())
        answerers[way.name] = InferAnswerer(
            node.mesh, node.id, node.answerer.lookup, BUDGET, placer=fixed
        )
    (name,) = [spec.name for spec in loaded.info.inputs]
    inputs = {name: np.random.default_rng(3).random(shape, np.float32)}
    tell({"ways": {way.name: way.sent for way in ways_of(loaded.info, loaded.local)}})
    async for rounds in commands():
        for _ in range(auto_alone if rounds else 0):
            await ask(answerers[AUTO], model, inputs)
        tell(await by_turns(answerers, model, inputs, rounds or 2))
    stop.set()
    await life


async def ask(
    answerer: InferAnswerer, model: str, inputs: Mapping[str, np.ndarray]
) -> tuple[float, str]:
    """Milliseconds, and the way that was taken. Raises `AssertionError` for a failure."""
    await asyncio.sleep(PAUSE)
    began = time.perf_counter()
    result = await answerer.answer(model, Request(dict(inputs)))
    assert result.status is Status.OK, result.message
    return (time.perf_counter() - began) * 1e3, result.way


async def by_turns(
    answerers: Mapping[str, InferAnswerer], model: str, inputs: Any, rounds: int
) -> dict[str, Any]:
    """Milliseconds of each way's requests, one by one in turns, and the ways of `AUTO`."""
    took: dict[str, list[float]] = {name: [] for name in answerers}
    chosen: list[str] = []
    names, order = list(answerers), random.Random(5)
    for _ in range(rounds):
        order.shuffle(names)  # nobody always follows the same one
        for name in names:
            milliseconds, way = await ask(answerers[name], model, inputs)
            took[name].append(milliseconds)
            if name == AUTO:
                chosen.append(way)
    return {"took_ms": took, "chosen": chosen}


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
