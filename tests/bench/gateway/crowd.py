"""Many clients of one gateway at a time: its memory, its errors, and slow senders beside others.

A mesh of one stage and a gateway with both doors. First each door is asked over 100 connections,
20 requests on each, again and again. Then one client asks at a steady pace, by turns alone and
beside 500 connections that send a byte a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.commands import environment
from support.gateways import address, gateway_of
from support.meshes import READY, close, digits, mesh_of, split_digits

from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.systems.http_client import HttpClient
from nodes.console import out

TESTS = Path(__file__).resolve().parents[2]
DOORS = ("http", "grpc")
MOST_GROWTH = 1.05  # of the memory, from the crowds in the middle to the last ones
MOST_SLOWER = 2.0  # p99 beside slow senders, over the p99 alone

Ask = Callable[[], Awaitable[np.ndarray]]


@dataclass(frozen=True)
class CrowdPlan:
    """crowds: how often all connections are opened, used and closed. rate: requests a second of
    the client beside slow senders. seconds: of one turn."""

    connections: int = 100
    requests: int = 20
    crowds: int = 12
    slow: int = 500
    rounds: int = 5
    rate: float = 100.0
    seconds: float = 3.0


def _http(where: str, image: np.ndarray) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    """A client with a connection of its own, and its end."""
    client = HttpClient(int(where.rpartition(":")[2]))
    entry: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    entry["parameters"] = {"binary_data_size": image.nbytes}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}

    async def ask() -> np.ndarray:
        body: list[bytes | memoryview] = [head, image.tobytes()]
        answered, data = await client.post("/v2/models/digits/infer", body, headers)
        at = int(answered["inference-header-content-length"])
        return np.frombuffer(data, np.float32, offset=at)

    async def end() -> None:
        client.close()

    return ask, end


def _grpc(where: str, image: np.ndarray) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    import grpc.aio

    from nodes.gateway.grpc.messages import INFERENCE, ModelInferRequest, ModelInferResponse

    # A connection of its own: the library shares one between channels otherwise.
    channel = grpc.aio.insecure_channel(where, [("grpc.use_local_subchannel_pool", 1)])
    infer = channel.unary_unary(
        f"/{INFERENCE}/ModelInfer",
        ModelInferRequest.SerializeToString,
        ModelInferResponse.FromString,
    )

    async def ask() -> np.ndarray:
        request = ModelInferRequest(model_name="digits")
        request.inputs.add(name="image", datatype="FP32", shape=image.shape)
        request.raw_input_contents.append(image.tobytes())
        answer = await infer(request)
        return np.frombuffer(answer.raw_output_contents[0], np.float32)

    return ask, channel.close


CLIENTS = {"http": _http, "grpc": _grpc}


async def measure_crowd(plan: CrowdPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench gateway --crowd`."""
    progress("starting")
    figures: dict[str, Figure] = {}
    found: dict[str, Any] = {}
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        flags = ("--http", "0", "--grpc", "0", "--gateway-connection-age", "3")  # the default
        node = await gateway_of(local, *flags)
        process = psutil.Process(node.pid)
        for door in DOORS:
            where = address(local, node, door).removeprefix("http://")
            found[door] = await _crowds(door, where, plan, process, progress)
            figures |= await _beside(door, where, plan, progress)
    return {
        "connections": plan.connections,
        "doors": found,
        "slow": plan.slow,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


async def _crowds(
    door: str, where: str, plan: CrowdPlan, process: psutil.Process, progress: Progress
) -> dict[str, Any]:
    """Errors, and megabytes of the gateway's process after each crowd."""
    images, logits = digits()

    async def one() -> list[str]:
        ask, end = CLIENTS[door](where, images[:1])
        try:
            return [await _error(ask, logits[0]) for _ in range(plan.requests)]
        finally:
            await end()

    memory: list[float] = []
    errors: list[str] = []
    for crowd in range(plan.crowds):
        progress(f"{door}: crowd {crowd + 1} of {plan.crowds}")
        for each in await asyncio.gather(*(one() for _ in range(plan.connections))):
            errors += [error for error in each if error]
        memory.append(process.memory_info().rss / 1e6)
    return {
        "requests": plan.crowds * plan.connections * plan.requests,
        "failed": len(errors),
        "errors": sorted(set(errors))[:3],
        "memory_mb": [round(each, 1) for each in memory],
        "growth": round(memory[-1] / memory[plan.crowds // 2], 4),
    }


async def _error(ask: Ask, expected: np.ndarray) -> str:
    """Of one request, "" for a right answer."""
    try:
        answer = await ask()
    except Exception as error:  # of any kind: it is counted
        return f"{type(error).__name__}: {error!s:.120}"
    return "" if close(answer, expected) else "a wrong answer"


async def _beside(door: str, where: str, plan: CrowdPlan, progress: Progress) -> dict[str, Figure]:
    """The p99 of a client, alone and beside slow senders; the ratio is taken within each round."""
    turns: dict[str, list[float]] = {"alone": [], "beside": []}
    ask, end = CLIENTS[door](where, digits()[0][:1])
    for number, turn in by_turns(plan.rounds, list(turns)):
        progress(f"{door}: round {number} of {plan.rounds}: {turn}")
        async with contextlib.AsyncExitStack() as beside:
            if turn == "beside":
                port = int(where.rpartition(":")[2])
                await beside.enter_async_context(slow_senders(port, plan.slow))
            turns[turn].append(percentile(await _paced(ask, plan), 0.99))
    await end()
    pairs = zip(turns["beside"], turns["alone"], strict=True)
    ratios = [beside_them / alone for beside_them, alone in pairs]
    return {
        **{f"{door}/p99_{turn}_ms": Figure.of(values, "ms") for turn, values in turns.items()},
        f"{door}/p99_beside_slow_senders": Figure.of(ratios, "x", floor=True),
    }


async def _paced(ask: Ask, plan: CrowdPlan) -> list[float]:
    """Milliseconds of each request of one turn, one after the other at a steady pace."""
    took = []
    began = time.perf_counter()
    for number in range(round(plan.rate * plan.seconds)):
        await asyncio.sleep(max(0.0, began + number / plan.rate - time.perf_counter()))
        at = time.perf_counter()
        await ask()
        took.append(1e3 * (time.perf_counter() - at))
    return took


@asynccontextmanager
async def slow_senders(port: int, count: int) -> AsyncIterator[None]:
    """A process that holds so many connections open, from the beginning of the block to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.gateway.slow_senders", str(port), str(count)),
        env=environment({"PYTHONPATH": str(TESTS)}),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY):
            assert await process.stdout.readline() == b"open\n"
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def show(document: dict[str, Any]) -> None:
    """A row for each door."""
    headings = ("requests", "failed", "MB after each crowd", "growth")
    crowds = new_table(f"Crowds of {document['connections']} connections", "door", *headings)
    slow = new_table(
        f"A client beside {document['slow']} slow senders",
        *("door", "p99 ms alone", "p99 ms beside", "ratio (rounds)"),
    )
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    for door, found in document["doors"].items():
        memory = found["memory_mb"]
        told = f"{memory[0]:.0f} … {memory[len(memory) // 2]:.1f} … {memory[-1]:.1f}"
        growth = f"{found['growth']:.3f}"
        crowds.add_row(door, str(found["requests"]), str(found["failed"]), told, growth)
        times = [f"{figures[f'{door}/p99_{turn}_ms'].value:.3g}" for turn in ("alone", "beside")]
        slow.add_row(door, *times, str(figures[f"{door}/p99_beside_slow_senders"]))
    out.print(crowds)
    out.print(slow)


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that are missed."""
    missed = []
    for door, found in document["doors"].items():
        if found["failed"]:
            missed.append(f"{door}: {found['failed']} requests failed: {found['errors']}")
        if found["growth"] > MOST_GROWTH:
            missed.append(f"{door}: memory grows by {found['growth']}: {found['memory_mb']}")
        ratio = document["figures"][f"{door}/p99_beside_slow_senders"]["value"]
        if ratio > MOST_SLOWER:
            missed.append(f"{door}: p99 is {ratio} times as high beside slow senders")
    return missed


CROWD = Benchmark("gateway --crowd", measure_crowd, show, misses=misses)
