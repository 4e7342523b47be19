"""What happens at a multiple of the capacity, and after it.

The capacity is measured first (closed loop), then an open loop offers a multiple of the capacity,
then follows a light load. Goodput counts only answers inside their budget.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

import swarm
from bench.report.figure import percentile
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.split.split import split
from shards.zoo.builders import mobilenet
from swarm.errors import Status

IMAGE_PIXELS = 128  # a side: some 2 ms of compute a stage, so that the stages are the bottleneck
MODEL = "overload"
CAPACITY_IN_FLIGHT = 12
CAPACITY_SLICES = 5  # of a second each
RECOVERY_LOAD = 0.5  # of the capacity, after the overload
RECOVERED_AFTER = 0.5  # seconds in which every request went well
RECOVERY_TIMEOUT = 10.0  # seconds after the overload


@dataclass(slots=True)
class Tally:
    """The outcome of one phase's requests; times in seconds.

    good: answered inside the budget. late: answered after it, or ended by it. refused: told at
    once. other: any other error.
    """

    good: int = 0
    late: int = 0
    refused: int = 0
    other: int = 0
    latencies: list[float] = field(default_factory=list)
    refusal_times: list[float] = field(default_factory=list)

    @property
    def offered(self) -> int:
        return self.good + self.late + self.refused + self.other

    def as_doc(self, seconds: float) -> dict[str, Any]:
        def milliseconds(values: list[float], share: float) -> float:
            return round(percentile(values, share) * 1e3, 3)

        return {
            "offered_per_s": round(self.offered / seconds, 1),
            "goodput_per_s": round(self.good / seconds, 1),
            "refused": self.refused,
            "late": self.late,
            "other": self.other,
            "latency_p50_ms": milliseconds(self.latencies, 0.50),
            "latency_p99_ms": milliseconds(self.latencies, 0.99),
            "refusal_p99_ms": milliseconds(self.refusal_times, 0.99),
        }


async def measure_overload(
    seconds: float, factor: float, budget: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The document of `swarm bench overload`: capacity, overload and recovery of a real mesh.

    seconds: length of the overload. factor: offered load in capacities. budget: seconds a request.
    """
    result = await asyncio.to_thread(
        split, mobilenet(IMAGE_PIXELS), name=MODEL, stages=3, bandwidth=1e6
    )
    async with local_mesh() as local:
        await push(local, result.manifest.to_json(), result.files)
        for stage in (1, 2, 3):
            local.start(f"shard-{stage}", MODEL)
        await local.ready()
        image = np.random.default_rng(0).random(
            (1, 3, IMAGE_PIXELS, IMAGE_PIXELS), dtype=np.float32
        )
        inputs = {"image": image}
        capacity = await _capacity(local.mesh, inputs)
        progress(f"capacity {capacity:.0f} requests/s; now {factor:g} times that …")
        before = _memory(local)
        load = await _open_loop(local.mesh, inputs, capacity * factor, seconds, budget)
        after = _memory(local)
        ended = time.monotonic()
        recovery = await _recovery(local.mesh, inputs, capacity * RECOVERY_LOAD, budget, ended)
    return {
        "capacity_per_s": round(capacity, 1),
        "budget_ms": budget * 1e3,
        "factor": factor,
        "seconds": seconds,
        **load.as_doc(seconds),
        "goodput_share": round(load.good / seconds / capacity, 3),
        "rss_growth_mb": round((after - before) / 1e6, 1),
        "recovery_ms": round(recovery * 1e3, 1),
    }


async def _capacity(mesh: swarm.Mesh, inputs: dict[str, np.ndarray]) -> float:
    """Requests a second: the median of `CAPACITY_SLICES` after a second of warming up."""
    stop = asyncio.Event()
    done = 0

    async def ask() -> None:
        nonlocal done
        while not stop.is_set():
            await mesh.infer(MODEL, inputs, 5.0)
            done += 1

    tasks = [asyncio.create_task(ask()) for _ in range(CAPACITY_IN_FLIGHT)]
    await asyncio.sleep(1.0)
    rates = []
    for _ in range(CAPACITY_SLICES):
        count, began = done, time.monotonic()
        await asyncio.sleep(1.0)
        rates.append((done - count) / (time.monotonic() - began))
    stop.set()
    await asyncio.gather(*tasks)
    return statistics.median(rates)


async def _open_loop(
    mesh: swarm.Mesh,
    inputs: dict[str, np.ndarray],
    rate: float,
    seconds: float,
    budget: float,
) -> Tally:
    """Requests at a fixed pace, whatever becomes of the earlier ones."""
    tally = Tally()
    tasks: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    for index in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
        task = asyncio.create_task(_ask(mesh, inputs, budget, tally))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return tally


async def _ask(
    mesh: swarm.Mesh, inputs: dict[str, np.ndarray], budget: float, tally: Tally
) -> None:
    began = time.monotonic()
    result = await mesh.ask(MODEL, inputs, budget)
    took = time.monotonic() - began
    if result.status is Status.OK and took <= budget:
        tally.good += 1
        tally.latencies.append(took)
    elif result.status is Status.RESOURCE_EXHAUSTED:
        tally.refused += 1
        tally.refusal_times.append(took)
    elif result.status in (Status.DEADLINE_EXCEEDED, Status.OK):
        tally.late += 1
    else:
        tally.other += 1


async def _recovery(
    mesh: swarm.Mesh,
    inputs: dict[str, np.ndarray],
    rate: float,
    budget: float,
    ended: float,
) -> float:
    """Seconds from the overload's end until requests of a light load began to go well, all of them
    for `RECOVERED_AFTER` seconds."""
    well_since = time.monotonic()
    while time.monotonic() - ended < RECOVERY_TIMEOUT:
        tally = Tally()
        began = time.monotonic()
        await _ask(mesh, inputs, budget, tally)
        if not tally.good:
            well_since = time.monotonic()
        elif time.monotonic() - well_since > RECOVERED_AFTER:
            break
        await asyncio.sleep(max(0.0, began + 1 / rate - time.monotonic()))
    return well_since - ended


def _memory(local: LocalMesh) -> int:
    """Resident bytes of all processes, the server and this one included."""
    pids = [node.pid for node in local.supervisor.nodes]
    if local.server is not None:
        pids.append(local.server.pid)
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids) + int(
        psutil.Process().memory_info().rss
    )
