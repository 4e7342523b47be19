"""Asks a mesh for digits, small and large requests in turn, until its standard input ends.

Run as a program, it takes the code of `swarm` from its PYTHONPATH, whichever version that is:

    python upgrade_client.py NATS_URL FEEDS.npz DELIVERY …

FEEDS: pairs of arrays `image.NAME` and `logits.NAME`, the inputs and the right answers. DELIVERY:
`durable`, `core` (fast mode, by the name that every version knows), or both, in turn. For each
answer it prints a JSON line: status, message, right, delivery, attempt, nodes (in order of their
stages).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

import numpy as np

import swarm

BUDGET = 20.0  # seconds
AT_A_TIME = 2  # requests under way
PAUSE = 0.02  # seconds between two
TOLERANCE = 1e-5  # relative


async def ask(mesh: swarm.Mesh, image: np.ndarray, logits: np.ndarray, delivery: str) -> None:
    result = await mesh.ask("digits", {"image": image}, BUDGET, delivery=delivery)
    right = False
    if result.status is swarm.Status.OK:
        error = np.abs(result.outputs["logits"] - logits).max()
        right = bool(error <= TOLERANCE * np.abs(logits).max())
    line = {
        "status": str(result.status),
        "message": result.message,
        "right": right,
        "delivery": delivery,
        "attempt": result.attempt,
        "nodes": [hop.node for hop in result.hops],
    }
    print(json.dumps(line), flush=True)


async def main(url: str, feeds: str, *deliveries: str) -> None:
    arrays = dict(np.load(feeds))
    names = sorted(name.partition(".")[2] for name in arrays if name.startswith("image."))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)

    async def keep_asking(mesh: swarm.Mesh) -> None:
        for name, delivery in itertools.cycle(itertools.product(names, deliveries)):
            await ask(mesh, arrays[f"image.{name}"], arrays[f"logits.{name}"], delivery)
            if ended.is_set():
                return
            await asyncio.sleep(PAUSE)  # leaves the processor to nodes that start

    async with swarm.connect(url) as mesh:
        await asyncio.gather(*(keep_asking(mesh) for _ in range(AT_A_TIME)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
