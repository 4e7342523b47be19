"""What happens at a multiple of the capacity, and after it.

The capacity is measured first (closed loop), then an open loop offers a multiple of the capacity,
then follows a light load. Goodput counts only answers inside their budget.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from support.meshes import LOOPBACK, mesh_of
from zoo.builders import mobilenet

import swarm
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from bench.report.tables import facts
from nodes.console import out
from nodes.up.mesh import LocalMesh
from shards.split.split import split
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


@dataclass(frozen=True)
class OverloadPlan:
    """seconds: length of the overload. factor: offered load in capacities. budget: seconds of each
    request."""

    seconds: float = 30.0
    factor: float = 3.0
    budget: float = 0.1


async def measure_overload(plan: OverloadPlan, progress: Progress) -> dict[str, Any]:
    """The document: capacity, overload and recovery of a real mesh."""
    result = await asyncio.to_thread(
        split, mobilenet(IMAGE_PIXELS), name=MODEL, stages=3, bandwidth=LOOPBACK
    )
    image = np.random.default_rng(0).random((1, 3, IMAGE_PIXELS, IMAGE_PIXELS), dtype=np.float32)
    inputs = {"image": image}
    async with mesh_of(result, "shard-1", "shard-2", "shard-3") as local:
        capacity = await _capacity(local.mesh, inputs)
        progress(f"capacity {capacity:.0f} requests/s; now {plan.factor:g} times that …")
        before = _memory(local)
        load = await _open_loop(local.mesh, inputs, capacity * plan.factor, plan)
        after = _memory(local)
        ended = time.monotonic()
        recovery = await _recovery(local.mesh, inputs, capacity * RECOVERY_LOAD, plan.budget, ended)
    return {
        "capacity_per_s": round(capacity, 1),
        "budget_ms": plan.budget * 1e3,
        "factor": plan.factor,
        "seconds": plan.seconds,
        **load.as_doc(plan.seconds),
        "goodput_share": round(load.good / plan.seconds / capacity, 3),
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
    mesh: swarm.Mesh, inputs: dict[str, np.ndarray], rate: float, plan: OverloadPlan
) -> Tally:
    """Requests at a fixed pace, whatever becomes of the earlier ones."""
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        async for _ in paced(rate, int(rate * plan.seconds)):
            group.create_task(_ask(mesh, inputs, plan.budget, tally))
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


LEAST_GOODPUT_SHARE = 0.85
"""Goodput under overload, as a share of the capacity, from which the benchmark passes."""


def misses(document: dict[str, Any]) -> list[str]:
    """A line where the goodput is below the target."""
    share = document["goodput_share"]
    if share >= LEAST_GOODPUT_SHARE:
        return []
    return [f"goodput is {share:g} of the capacity, at least {LEAST_GOODPUT_SHARE:g}"]


OVERLOAD = Benchmark(
    "overload", measure_overload, lambda document: out.print(facts(document)), misses=misses
)
