"""One point of the scale benchmark: a server, nodes, agents; idle for a while, then under load."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import numpy as np

import swarm
from bench.fleets.monitored_server import MonitoredServer
from bench.helpers import helper
from bench.report.figure import percentile
from bench.rivals.processes import tree_cpu
from bench.rivals.workload import WrongAnswer
from shards.manifest import Manifest, Shard, TensorSpec
from swarm.errors import ResourceExhausted, SwarmError

STAGES = 3
VALUES_A_REQUEST = 256
"""FP32 values of one request: 1 KiB."""
MESH = "scale"
BUDGET = 20.0  # seconds
START_TIMEOUT = 180.0  # seconds until all nodes are ready
END_TIMEOUT = 20.0  # seconds until a process of nodes has ended
SETTLE = 1.0  # seconds in which nodes that have just started find each other
MOST_FAILED_SHARE = 0.05
"""The share of requests that may fail; a point with more failures raises `RuntimeError`."""


@dataclass(frozen=True, slots=True)
class Point:
    """nodes: at least three per model. agents: clients with a connection each, one request at a
    time. requests: of all agents together. idle: seconds in which nothing is asked. hosts:
    processes that the nodes are spread over."""

    nodes: int = 12
    models: int = 1
    agents: int = 8
    requests: int = 2000
    idle: float = 1.5
    hosts: int = 2

    def placement(self) -> list[tuple[str, str, str]]:
        """Node id, role and model of each node: stages in turn, models in turn."""
        count = max(self.nodes, STAGES * self.models)
        return [
            (f"n{j}", f"shard-{j % STAGES + 1}", f"m{j // STAGES % self.models}")
            for j in range(count)
        ]


def manifest(model: str) -> bytes:
    """A model of stages without layers: each passes on the tensor that it receives."""
    spec = TensorSpec("x", "FP32", (1, VALUES_A_REQUEST))
    shards = tuple(
        Shard(k, 0, 0, "", "", 0, (), (), ("x",), (spec,), (spec,), 0.01)
        for k in range(1, STAGES + 1)
    )
    return Manifest(
        model, "1", "2025-01-01T00:00:00Z", "0" * 64, 17, (spec,), (spec,), shards
    ).to_json()


async def measure_point(point: Point) -> dict[str, float]:
    """The figures of one point. Raises `WrongAnswer`, `RuntimeError` when a host ends early."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(MonitoredServer())
        client = await stack.enter_async_context(swarm.connect(server.url, MESH))
        for number in range(point.models):
            await client.registry.push(manifest(f"m{number}"), {})
        alone = (await server.read()).rss
        added = await stack.enter_async_context(_hosts(point, server.url))
        agents = [
            await stack.enter_async_context(swarm.connect(server.url, MESH, agent=f"a{i}"))
            for i in range(point.agents)
        ]
        await asyncio.sleep(SETTLE)
        await _ask(agents, point, 2 * point.agents)
        before = await server.read()
        await asyncio.sleep(point.idle)
        idle = await server.read()
        spent = tree_cpu()
        started = time.perf_counter()
        latencies, refused, failed = await _ask(agents, point, point.requests)
        elapsed = time.perf_counter() - started
        after = await server.read()
        spent = tree_cpu() - spent
    count = len(point.placement())
    messages_s = (idle.messages - before.messages) / point.idle
    octets_s = (idle.octets - before.octets) / point.idle
    requests = len(latencies)
    return {
        "requests_per_s": requests / elapsed,
        "p50_ms": 1e3 * percentile(latencies, 0.5),
        "p99_ms": 1e3 * percentile(latencies, 0.99),
        "refused": refused,
        "failed": failed,
        "server_cpu_ms_per_request": 1e3 * (after.cpu - idle.cpu) / requests,
        "all_cpu_ms_per_request": 1e3 * spent / requests,
        "messages_per_request": _above(after.messages - idle.messages, messages_s, elapsed)
        / requests,
        "bytes_per_request": _above(after.octets - idle.octets, octets_s, elapsed) / requests,
        "idle_messages_per_s": messages_s,
        "idle_bytes_per_s": octets_s,
        "idle_server_cpu_percent": 100 * (idle.cpu - before.cpu) / point.idle,
        "server_rss_mb": after.rss / 1e6,
        "server_rss_mb_over_empty": (after.rss - alone) / 1e6,
        "node_rss_mb": added / count / 1e6,
        "connections": idle.connections,
        "nodes": count,
        **{key: value for key, value in asdict(point).items() if key in ("models", "agents")},
    }


def _above(total: float, background_s: float, elapsed: float) -> float:
    """The part of a total that the load caused: without that of the idle mesh in the same time."""
    return max(0.0, total - background_s * elapsed)


async def _ask(
    agents: list[swarm.Mesh], point: Point, requests: int
) -> tuple[list[float], int, int]:
    """Ask `requests` times, each agent one request after another.

    Returns latencies in seconds, the number of refusals by full lanes (the request was sent again),
    and the number of failed requests. Every answer is compared. Raises `WrongAnswer`,
    `RuntimeError`.
    """
    latencies: list[float] = []
    failures: list[SwarmError] = []
    refused = 0
    left = max(requests, point.agents)

    async def ask_in_turn(number: int, mesh: swarm.Mesh) -> None:
        nonlocal left, refused
        result = None
        x = np.full((1, VALUES_A_REQUEST), number + 0.5, np.float32)
        model = f"m{number % point.models}"
        while left > 0:
            left -= 1
            started = time.perf_counter()
            while True:
                try:
                    result = await mesh.infer(model, {"x": x}, budget=BUDGET)
                    break
                except ResourceExhausted as error:
                    refused += 1
                    await asyncio.sleep(max(error.retry_after, random.uniform(0.001, 0.01)))
                except SwarmError as error:
                    failures.append(error)
                    result = None
                    break
            if result is None:
                continue
            latencies.append(time.perf_counter() - started)
            if len(result.hops) != STAGES or not np.array_equal(result.outputs["x"], x):
                raise WrongAnswer(f"agent {number} of {model} got another answer than its own")
            x += 1

    async with asyncio.TaskGroup() as group:
        for number, mesh in enumerate(agents):
            group.create_task(ask_in_turn(number, mesh))
    if len(failures) > MOST_FAILED_SHARE * (len(latencies) + len(failures)):
        raise RuntimeError(f"{len(failures)} requests failed, the last one: {failures[-1]}")
    return latencies, refused, len(failures)


@asynccontextmanager
async def _hosts(point: Point, url: str) -> AsyncIterator[int]:
    """The processes that hold the nodes, ready. Yields the resident bytes that the nodes added."""
    placement = point.placement()
    async with contextlib.AsyncExitStack() as stack:
        hosts = []
        for number in range(min(point.hosts, len(placement))):
            words = [url, MESH, placement[number :: point.hosts]]
            starting = helper("bench.fleets.node_host", words, END_TIMEOUT)
            hosts.append(await stack.enter_async_context(starting))
        added = 0
        for host in hosts:
            up, ready = await host.answer(), await host.answer(within=START_TIMEOUT)
            added += ready - up
        yield added
