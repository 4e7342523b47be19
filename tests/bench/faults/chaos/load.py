"""The client: asks at a steady pace, whatever becomes of earlier requests, and compares answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import swarm
from bench.faults.chaos.workload import Workload
from swarm.errors import Status

GRACE = 1.0  # seconds past its budget after which a request without any outcome is lost


@dataclass(slots=True)
class Asked:
    """One request. Times are seconds since the load began; done: 0.0 while there is no outcome.
    status: by gRPC's name, empty without an outcome."""

    sent: float
    done: float = 0.0
    status: str = ""
    message: str = ""
    attempt: int = 0
    wrong: bool = False


async def ask_steadily(
    mesh: swarm.Mesh, workload: Workload, rate: float, seconds: float, budget: float, began: float
) -> list[Asked]:
    """`rate` requests a second for `seconds`, each with `budget` seconds, from `began` on
    (`time.monotonic()`); returns them when all have ended, or should have."""
    records: list[Asked] = []
    tasks: set[asyncio.Task[None]] = set()
    for index in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
        record = Asked(time.monotonic() - began)
        records.append(record)
        task = asyncio.create_task(_ask(mesh, workload, index, budget, began, record))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=budget + GRACE)
        for task in left:
            task.cancel()
    return records


async def _ask(
    mesh: swarm.Mesh, workload: Workload, index: int, budget: float, began: float, record: Asked
) -> None:
    inputs = workload.inputs[index % len(workload.inputs)]
    result = await mesh.ask(workload.model.manifest.model, inputs, budget)
    record.done = time.monotonic() - began
    record.status, record.message = str(result.status), result.message
    record.attempt = result.attempt
    if result.status is Status.OK:
        record.wrong = not workload.is_right(index, result.outputs)
