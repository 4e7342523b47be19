"""The helper that asks two meshes by turns, for `swarm bench scale --nodes 1000`.

Numbers of meshes count from 0; moments are `time.monotonic()`, which processes of one host share.

    {"do": "alone", "mesh": 0, "requests": 100}   one after the other: their latencies, in seconds
    {"do": "paced", "mesh": 0, "rate": 50.0, "seconds": 3.0}   [sent, done, right] of each request
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from support.meshes import close, digits

import swarm
from bench.helpers import arguments, commands, tell
from bench.paced import paced
from bench.rivals.workload import WrongAnswer
from nodes.event_loop import run_event_loop
from swarm.errors import Status

MODEL = "digits"
BUDGET = 5.0  # seconds
WARM_UP = 50  # requests


class Asker:
    """Asks one mesh, and compares each answer with that of the whole model."""

    def __init__(self, mesh: swarm.Mesh) -> None:
        self._mesh = mesh
        self._images, self._logits = digits()
        self._number = 0

    async def ask(self) -> bool:
        """Whether it was answered. Raises `WrongAnswer`."""
        self._number += 1
        at = self._number % len(self._images)
        result = await self._mesh.ask(MODEL, {"image": self._images[at : at + 1]}, BUDGET)
        if result.status is not Status.OK:
            return False
        if not close(result.outputs["logits"], self._logits[at : at + 1]):
            raise WrongAnswer(f"another answer to image {at} than the whole model's")
        return True

    async def alone(self, requests: int) -> list[float]:
        """Latencies in seconds. Raises `RuntimeError` for a request that is not answered."""
        latencies = []
        for _ in range(requests):
            began = time.perf_counter()
            if not await self.ask():
                raise RuntimeError("a request to a mesh that is well was not answered")
            latencies.append(time.perf_counter() - began)
        return latencies

    async def paced(self, rate: float, seconds: float) -> list[tuple[float, float, bool]]:
        """When each request was sent and done, and whether it was answered."""
        rows: list[tuple[float, float, bool]] = []

        async def once() -> None:
            sent = time.monotonic()
            right = await self.ask()
            rows.append((sent, time.monotonic(), right))

        async with asyncio.TaskGroup() as group:
            async for _ in paced(rate, int(rate * seconds)):
                group.create_task(once())
        return sorted(rows)


async def answer_commands(urls: Sequence[tuple[str, str]]) -> None:
    """urls: of the servers, with the names of the meshes."""
    async with (
        swarm.connect(*urls[0], shm=False) as first,
        swarm.connect(*urls[1], shm=False) as second,
    ):
        askers = [Asker(first), Asker(second)]
        for asker in askers:
            await asker.alone(WARM_UP)
        tell("ready")
        async for command in commands():
            asker = askers[command["mesh"]]
            if command["do"] == "alone":
                tell(await asker.alone(command["requests"]))
            else:
                tell(await asker.paced(command["rate"], command["seconds"]))


if __name__ == "__main__":
    run_event_loop(answer_commands(arguments()))
