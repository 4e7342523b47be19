"""`swarm bench cameras --core`: what cameras cost the core, by what their edges send it.

One node of the core has one processor for itself; server and cameras have the others. A frame's age
counts from the moment when it is due to its answer. What an edge computes is measured in this
process, and made beforehand: the figures of the core are the core's alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import swarm
from bench.cameras.cameras import FOUND
from bench.cameras.face_camera import pictures
from bench.cameras.faces import in_pixels
from bench.faces import overlap
from bench.paced import paced
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.ultraface import ultraface_file
from nodes.cameras.picture_task import jpeg_of
from nodes.console import out
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from shards.cameras import Detections, Task
from shards.cameras.wish import Wish
from shards.runtimes.load import load_stage
from shards.split.split import SplitResult, split
from swarm.errors import Status
from swarm.requests.request import Ask

WHOLE, HALVES = "faces", "faces-split"
EDGE, RAW, SPLIT = "all-edge", "raw", "split"
QUALITIES = (95, 85, 75)
JPEG = "jpeg:85"
SENT = (JPEG, RAW, SPLIT)
OLDEST = 0.200  # seconds
IN_FLIGHT = 4
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)  # of what one node can do at most
BUDGET = 2.0  # seconds
READY = 60.0  # seconds
TICKS = os.sysconf("SC_CLK_TCK")

Tensors = dict[str, np.ndarray]
Send = Callable[[int], Awaitable[swarm.Result]]


@dataclass(frozen=True)
class CorePlan:
    """seconds: of each rate."""

    seconds: float = 4.0
    rounds: int = 2
    ultraface: str = ""


def _split(plan: CorePlan, name: str, stages: int) -> SplitResult:
    wish = Wish("detect", labels=("face",), threshold=0.7)
    return split(ultraface_file(plan.ultraface), name=name, stages=stages, addition=wish)


def made_by_edges(
    whole: SplitResult, halves: SplitResult
) -> dict[str, tuple[list[Tensors], float]]:
    """What each way sends of each picture, and an edge's milliseconds for one."""
    task, images = Task.of(whole.manifest.parts.get("task")), pictures()[0]
    early = load_stage(halves.manifest, 1, halves.files.__getitem__)
    all_here = load_stage(whole.manifest, 1, whole.files.__getitem__)
    makers: dict[str, Callable[[np.ndarray], Tensors]] = {
        EDGE: lambda image: all_here.run(task.prepare(image)),
        RAW: task.prepare,
        SPLIT: lambda image: early.run(task.prepare(image)),
    }
    for quality in QUALITIES:
        makers[f"jpeg:{quality}"] = lambda image, q=quality: jpeg_of(task, image, q)  # type: ignore[misc]
    made = {}
    for way, make in makers.items():
        make(images[0])
        began = time.thread_time()
        tensors = [make(image) for image in images]
        made[way] = tensors, (time.thread_time() - began) / len(images) * 1e3
    return made


def faces_found(task: Task, outputs: Sequence[Tensors]) -> int:
    """Pictures whose face is among the boxes."""
    images, faces = pictures()
    found = 0
    for image, truth, each in zip(images, faces, outputs, strict=True):
        boxes = task.read(each, image.shape)
        assert isinstance(boxes, Detections)
        found += any(overlap(box, truth) >= FOUND for box in in_pixels(boxes.boxes, image).tolist())
    return found


def pin(pid: int, processors: set[int]) -> None:
    """All threads of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), processors)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _ages(send: Send, rate: float, seconds: float) -> list[float]:
    """Seconds from the moment when each frame is due to its answer; infinity without one."""
    ages: list[float] = []

    async def once(number: int, due: float) -> None:
        result = await send(number)
        ages.append(time.monotonic() - due if result.status is Status.OK else inf)

    async with asyncio.TaskGroup() as group:
        async for number, due in paced(rate, int(rate * seconds)):
            group.create_task(once(number, due))
    return ages


async def _most(send: Send, seconds: float) -> float:
    """Answers a second with few in flight, always."""
    until, answered = time.monotonic() + seconds, 0

    async def worker(first: int) -> None:
        nonlocal answered
        number = first
        while time.monotonic() < until:
            result = await send(number)
            answered += result.status is Status.OK  # behind the wait, in which others count too
            number += IN_FLIGHT

    await asyncio.gather(*map(worker, range(IN_FLIGHT)))
    return answered / seconds


async def _rate(
    send: Send, node: NodeProcess, seconds: float, progress: Progress
) -> dict[str, float]:
    """The most frames a second whose ages hold, with the core's milliseconds for each."""
    assert node.process is not None
    pid = node.process.pid
    most = await _most(send, seconds)
    for share in SHARES:
        rate = most * share
        progress(f"{rate:.0f} frames/s")
        before = cpu_seconds(pid)
        ages = await _ages(send, rate, seconds)
        spent = (cpu_seconds(pid) - before) / len(ages) * 1e3
        if np.percentile(ages, 99) <= OLDEST:
            p50 = float(np.percentile(ages, 50)) * 1e3
            return {"frames_s": rate, "core_ms": spent, "p50_ms": p50}
    return {"frames_s": 0.0, "core_ms": spent, "p50_ms": inf}


async def _sender(mesh: swarm.Mesh, way: str, frames: list[Tensors]) -> Send:
    if way != SPLIT:
        return lambda number: mesh.ask(WHOLE, frames[number % len(frames)], BUDGET)
    info, loop = await mesh.model(HALVES), asyncio.get_running_loop()

    def send(number: int) -> Awaitable[swarm.Result]:
        tensors = frames[number % len(frames)]
        return mesh.requester.infer(Ask(info, tensors, loop.time() + BUDGET, stage=2))

    return send


async def measure(plan: CorePlan, progress: Progress) -> dict[str, Any]:
    whole = await asyncio.to_thread(_split, plan, WHOLE, 1)
    halves = await asyncio.to_thread(_split, plan, HALVES, 2)
    task = Task.of(whole.manifest.parts.get("task"))
    made = await asyncio.to_thread(made_by_edges, whole, halves)
    rows: list[dict[str, Any]] = []
    async with local_mesh(shm=False) as local:
        nodes = await _core(local, whole, halves)
        for way, (frames, edge_ms) in made.items():
            row: dict[str, Any] = {"way": way, "edge_ms": round(edge_ms, 3)}
            if way == EDGE:
                outputs, row["bytes"], row["pictures"] = frames, 0, len(frames)
            else:
                send = await _sender(local.mesh, way, frames)
                results = [await send(number) for number in range(len(frames))]
                outputs = [result.outputs for result in results]
                sizes = [sum(array.nbytes for array in each.values()) for each in frames]
                row |= {"bytes": int(np.mean(sizes)), "pictures": len(frames)}
            rows.append(row | {"faces": faces_found(task, outputs)})
        for number, way in by_turns(plan.rounds, SENT):
            progress(f"{way}, round {number} of {plan.rounds} …")
            send = await _sender(local.mesh, way, made[way][0])
            node = nodes[HALVES if way == SPLIT else WHOLE]
            figures = await _rate(send, node, plan.seconds, progress)
            rounded = {key: round(value, 2) for key, value in figures.items()}
            next(row for row in rows if row["way"] == way).setdefault("rounds", []).append(rounded)
    return {"rows": rows}


async def _core(
    local: LocalMesh, whole: SplitResult, halves: SplitResult
) -> dict[str, NodeProcess]:
    """A node of each model, on one processor, which this process and the server leave to them."""
    processors = sorted(os.sched_getaffinity(0))
    nodes = {}
    for result, role in ((whole, "shard-1"), (halves, "shard-2")):
        await push(local, result.manifest.to_json(), result.files)
        nodes[result.manifest.model] = local.start(role, result.manifest.model)
    await local.until(lambda: all(_is_ready(local, each) for each in nodes.values()), READY)
    if len(processors) > 1:
        for node in nodes.values():
            assert node.process is not None
            pin(node.process.pid, {processors[0]})
        files = [server.pid_file for server in local.servers]
        servers = [int(file.read_text()) for file in files if file is not None]
        for pid in (os.getpid(), *servers):
            pin(pid, set(processors[1:]))
    return nodes


def _is_ready(local: LocalMesh, node: NodeProcess) -> bool:
    return (local.status_of(node) or {}).get("state") == "ready"


def misses(document: dict[str, Any]) -> list[str]:
    found = []
    for row in document["rows"]:
        if not row["faces"]:
            found.append(f"{row['way']}: no face was found")
        for figures in row.get("rounds", []):
            if not figures["frames_s"]:
                found.append(f"{row['way']}: no rate whose frames are young enough")
    return found


def show(document: dict[str, Any]) -> None:
    headings = ("way", "KB a frame", "faces", "edge ms", "core ms", "frames/s", "p50 ms")
    table = new_table(f"cameras a core: frames/s whose p99 age is {OLDEST * 1e3:g} ms", *headings)
    for row in document["rows"]:
        rounds = row.get("rounds", [])
        columns = (
            [" ".join(f"{each[key]:.{digits}f}" for each in rounds) or "-"]
            for key, digits in (("core_ms", 2), ("frames_s", 0), ("p50_ms", 0))
        )
        table.add_row(
            row["way"],
            f"{row['bytes'] / 1e3:.1f}",
            f"{row['faces']}/{row['pictures']}",
            f"{row['edge_ms']:.2f}",
            *(text for (text,) in columns),
        )
    out.print(table)


CORE = Benchmark("cameras --core", measure, show, misses=misses)
