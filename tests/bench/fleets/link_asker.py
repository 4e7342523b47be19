"""The process that asks, on its side of the link: with its own layers, with all, or by JPEG.

It asks until the link is known, says so, waits for a command, measures, and tells the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import swarm
from bench.fleets.detector import Found, as_input, as_jpeg, found_in
from bench.fleets.jpeg_core import SUBJECT
from bench.helpers import arguments, commands, tell
from shards.manifest import Manifest, read_dir
from shards.runtimes.load import StageRuntime, load_stage
from swarm.errors import SwarmError
from swarm.requests.request import Ask

ECHO = "bench-links.echo"
ECHO_EVERY = 0.02  # seconds
WARM_UP = 20  # requests: links are known by their latest 16 messages


class Answer(NamedTuple):
    """found: None for a failure. codec: how features and outputs came. attempts: of the asker."""

    found: Found | None
    codec: str = ""
    attempts: int = 1


AskOnce = Callable[[np.ndarray], Awaitable[Answer]]


async def echoes(mesh: swarm.Mesh, done: asyncio.Event) -> list[float]:
    """Milliseconds of small requests of the same process, one each `ECHO_EVERY` seconds."""
    took: list[float] = []

    async def once() -> None:
        began = time.perf_counter()
        with contextlib.suppress(TimeoutError, SwarmError):
            await mesh.link.request(ECHO, bytes(100), 5.0)
        took.append((time.perf_counter() - began) * 1e3)

    async with asyncio.TaskGroup() as group:
        while not done.is_set():
            group.create_task(once())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), ECHO_EVERY)
    return took


async def measure(ask: AskOnce, pictures: np.ndarray, alone: int, rated: int, at_once: int) -> Any:
    """alone: requests one after the other. rated: requests, `at_once` at a time."""
    for number in range(WARM_UP):
        await ask(pictures[number % len(pictures)])
    tell("ready")
    await anext(commands())
    latencies, found, failed, codec, attempts = [], {}, 0, "", 0
    for number in range(alone):
        began = time.perf_counter()
        answer = await ask(pictures[number % len(pictures)])
        latencies.append(time.perf_counter() - began)
        failed += answer.found is None
        attempts += answer.attempts
        codec = answer.codec or codec
        if answer.found is not None:
            found[number % len(pictures)] = answer.found
    numbers = iter(range(rated))
    began = time.perf_counter()

    async def go_on() -> int:
        missed = 0
        for number in numbers:
            missed += (await ask(pictures[number % len(pictures)])).found is None
        return missed

    failed += sum(await asyncio.gather(*(go_on() for _ in range(at_once))))
    return {
        "latencies_ms": [seconds * 1e3 for seconds in latencies],
        "seconds": time.perf_counter() - began,
        "failed": failed,
        "codec": codec,
        "attempts": attempts,
        "found": found,
    }


def by_mesh(
    mesh: swarm.Mesh, manifest: Manifest, first: StageRuntime | None, budget: float
) -> AskOnce:
    """Asks the mesh; `first` runs here."""
    (spec,) = manifest.inputs

    async def ask(picture: np.ndarray) -> Answer:
        tensors = as_input(picture, spec.name)
        if first is not None:
            tensors = first.run(tensors)
        info = await mesh.model(f"{manifest.model}@{manifest.version}")
        deadline = asyncio.get_running_loop().time() + budget
        result = await mesh.requester.infer(Ask(info, tensors, deadline))
        if result.status is not swarm.Status.OK:
            print(f"{result.status}: {result.message}", file=sys.stderr)
            return Answer(None)
        codec = next((hop.codec for hop in reversed(result.hops) if hop.codec), "")
        arrived_as = f"{codec or 'raw'}, {result.codec or 'raw'}"
        return Answer(found_in(result.outputs), arrived_as, result.attempt)

    return ask


def by_jpeg(mesh: swarm.Mesh, budget: float) -> AskOnce:
    """Sends the picture to a core that runs all."""

    async def ask(picture: np.ndarray) -> Answer:
        try:
            answer = await mesh.link.request(SUBJECT, as_jpeg(picture), budget)
        except (SwarmError, TimeoutError):
            return Answer(None)
        return Answer(json.loads(bytes(answer.data)))

    return ask


def all_here(manifest: Manifest, whole: StageRuntime) -> AskOnce:
    """Runs all layers here."""
    (spec,) = manifest.inputs

    async def ask(picture: np.ndarray) -> Answer:
        return Answer(found_in(whole.run(as_input(picture, spec.name))))

    return ask


async def main(words: dict[str, Any]) -> None:
    folder = Path(words["folder"])
    pictures = np.load(folder / "pictures.npy")
    counts = words["alone"], words["rated"], words["at_once"]
    way, budget = words["way"], words["budget"]
    if way == "all at the edge":
        manifest, fetch = read_dir(folder / "whole")
        ask = all_here(manifest, load_stage(manifest, 1, fetch))
        tell(await measure(ask, pictures, *counts))
        return
    async with swarm.connect(
        words["url"],
        words["mesh"],
        shm=False,
        codec=words["codec"],
        congestion=words["congestion"],
        two_connections=words["two_connections"],
    ) as mesh:
        if way == "jpeg":
            ask = by_jpeg(mesh, budget)
        else:
            manifest, fetch = read_dir(folder / way)
            first = load_stage(manifest, 0, fetch) if way == "edge" else None
            ask = by_mesh(mesh, manifest, first, budget)
        done = asyncio.Event()
        small = asyncio.create_task(echoes(mesh, done)) if words["echo"] else None
        result = await measure(ask, pictures, *counts)
        done.set()
        tell(result | {"small_ms": await small if small else []})


if __name__ == "__main__":
    asyncio.run(main(arguments()))
