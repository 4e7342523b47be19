"""`swarm bench cameras`: how old a camera's frame is when its result is there.

A camera process shows a face whose place is known. A result's frame is told by its place in the
camera's loop, so its age is true: from the moment when the frame was due, before it was encoded,
to the moment when the result is in another process.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.cameras.face_camera import LOOP, pictures
from bench.faces import HEIGHT, WIDTH, overlap
from bench.helpers import Helper, helper
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.ultraface import ultraface_file
from nodes.console import out
from nodes.up.embedded_cluster import free_ports
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.cameras.wish import Wish
from shards.split.split import split
from swarm.link import LinkMessage

FLOOR, TUNED = "OpenCV loop", "OpenCV loop, no buffer"
ONE, THREE, KILL = "1 node", "3 nodes", "3 nodes, a kill"
BUDGET, TAKEOVER = 2000.0, 1000.0  # ms
SINK, RATE = "bench-cameras", 30
FOUND = 0.4  # overlap from which a box is the face that was pasted
FIRST = RATE  # frames after which ages count
ENDS_WITHIN = 10.0  # seconds
READY = 60.0  # seconds


@dataclass(frozen=True)
class CamerasPlan:
    """frames: that the camera sends for each way. ways: see above. protocols: udp, rtsp."""

    frames: int = 300
    rounds: int = 1
    protocols: tuple[str, ...] = ("udp", "rtsp")
    ways: tuple[str, ...] = (FLOOR, TUNED, ONE, THREE, KILL)
    ultraface: str = ""


@dataclass
class Heard:
    """A result: its moment, the frame's number at the receiver, boxes in pixels, whether it is an
    answer."""

    now: float
    number: int
    boxes: list[list[float]]
    is_good: bool = True


def row_of(way: str, protocol: str, began: float, heard: list[Heard]) -> dict[str, Any]:
    """The figures of one way. The receiver's numbers begin with the first key frame that it sees:
    how many frames were before is the shift that puts the faces in their places."""
    _, faces = pictures()

    def found(each: Heard, shift: int) -> bool:
        truth = faces[(each.number + shift) % LOOP]
        return any(overlap(box, truth) >= FOUND for box in each.boxes)

    def spread(shift: int) -> float:
        """Of the way from the true middle to the found one: a constant part is the detector's."""
        apart = []
        for each in heard:
            truth = np.array(faces[(each.number + shift) % LOOP]).reshape(2, 2).mean(0)
            apart += [np.array(box).reshape(2, 2).mean(0) - truth for box in each.boxes[:1]]
        return float(np.var(apart, 0).sum()) if apart else 0.0

    shift = min(range(LOOP), key=spread)
    late = [each for each in heard if each.number + shift >= FIRST and each.is_good]
    ages = [(each.now - began - (each.number + shift) / RATE) * 1e3 for each in late]
    return {
        "way": way,
        "protocol": protocol,
        "results": len(heard),
        "answered": sum(each.is_good for each in heard),
        "faces": sum(found(each, shift) for each in heard if each.is_good),
        "age_p50_ms": round(float(np.percentile(ages, 50)), 1) if ages else None,
        "age_p99_ms": round(float(np.percentile(ages, 99)), 1) if ages else None,
        "age_max_ms": round(max(ages), 1) if ages else None,
    }


@asynccontextmanager
async def _camera(url: str, plan: CamerasPlan) -> AsyncIterator[tuple[float, Helper]]:
    where = url + "?pkt_size=1316" * url.startswith("udp:")  # whole packets of MPEG-TS
    async with helper("bench.cameras.face_camera", [where, RATE, plan.frames]) as camera:
        yield float(await camera.answer()), camera


async def _floor(plan: CamerasPlan, way: str, protocol: str, port: int) -> dict[str, Any]:
    url = f"udp://127.0.0.1:{port}"
    heard: list[Heard] = []
    where = url + "?fifo_size=21845&overrun_nonfatal=1"
    async with helper("bench.cameras.opencv_loop", [where, plan.ultraface, way == TUNED]) as loop:
        await loop.answer()
        async with _camera(url, plan) as (began, _):
            until = began + plan.frames / RATE
            while (left := until - time.monotonic()) > 0:
                try:
                    line = await loop.answer(within=left)
                except TimeoutError:
                    break
                heard.append(Heard(line["now"], line["number"], line["boxes"]))
        loop.process.kill()
    return row_of(way, protocol, began, heard)


async def _mesh(plan: CamerasPlan, way: str, protocol: str, port: int) -> dict[str, Any]:
    stages = 1 if way == ONE else 3
    wish = Wish("detect", labels=("face",), threshold=0.7)
    file = ultraface_file(plan.ultraface)
    result = await asyncio.to_thread(split, file, name="faces", stages=stages, addition=wish)
    url = f"{protocol}://127.0.0.1:{port}" + ("/live" if protocol == "rtsp" else "")
    source = url + ("?listen" if protocol == "rtsp" else "")
    heard: list[Heard] = []
    async with local_mesh() as local:
        await push(local, result.manifest.to_json(), result.files)
        for role in [f"shard-{number}" for number in range(1, stages + 1)] + ["fallback"] * (
            way == KILL
        ):
            local.start(role, "faces")
        await local.ready(READY)
        local.mesh.link.subscribe(
            local.mesh.subjects.results(SINK), lambda message: heard.append(_heard(message))
        )
        words = ("--source", source, "--sink", SINK, "--budget", f"{BUDGET:g}")
        edge = local.start("edge", "faces", *words)
        edge.wanted = False
        await local.ready(READY)
        async with _camera(url, plan) as (began, _):
            if way == KILL:
                await asyncio.sleep(plan.frames / RATE * 0.4)
                victim = next(node for node in local.supervisor.nodes if node.role == "shard-2")
                victim.wanted = False
                victim.signal(signal.SIGKILL)
            await asyncio.sleep(max(0.0, began + plan.frames / RATE - time.monotonic()))
            edge.signal(signal.SIGTERM)
            await local.until(lambda: _state(local, edge) == "left", ENDS_WITHIN)
        cameras = (local.status_of(edge) or {}).get("cameras", [])
        sent = sum(int(each["sent"]) for each in cameras)
        await local.until(lambda: len(heard) >= sent, 2.0)
    return row_of(way, protocol, began, heard) | {"sent": sent}


def _state(local: LocalMesh, edge: Any) -> str:
    return str((local.status_of(edge) or {}).get("state", ""))


def _heard(message: LinkMessage) -> Heard:
    line = json.loads(bytes(message.data))
    size = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    boxes = [(np.array(each["box"]) * size).tolist() for each in line.get("detections", [])]
    return Heard(time.monotonic(), line["sequence"], boxes, line["status"] == "OK")


async def measure(plan: CamerasPlan, progress: Progress) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for protocol in plan.protocols:
        for number, way in by_turns(plan.rounds, plan.ways):
            if way in (FLOOR, TUNED) and protocol == "rtsp":
                continue
            progress(f"{protocol}, {way}, round {number} of {plan.rounds} …")
            (port,) = free_ports(1)
            measured = _floor if way in (FLOOR, TUNED) else _mesh
            done = measured(plan, way, protocol, port)
            rows.append({"round": number, **await done})
    return {"rows": rows}


def misses(document: dict[str, Any]) -> list[str]:
    found = []
    for row in document["rows"]:
        name = f"{row['protocol']}, {row['way']}"
        if not row["answered"]:
            found.append(f"{name}: nothing was answered")
            continue
        if row["faces"] < row["answered"]:
            found.append(f"{name}: {row['faces']} faces of {row['answered']}")
        if row["answered"] < row.get("sent", 0):
            found.append(f"{name}: {row['answered']} answers of {row['sent']} frames")
        if row["way"] not in (FLOOR, TUNED) and row["age_max_ms"] > BUDGET + TAKEOVER:
            found.append(f"{name}: a frame of {row['age_max_ms']} ms")
    return found


def show(document: dict[str, Any]) -> None:
    headings = ("camera", "way", "faces", "p50 ms", "p99 ms", "oldest ms")
    table = new_table("a frame's true age at its result", *headings)
    for row in document["rows"]:
        ages = (str(row[key]) for key in ("age_p50_ms", "age_p99_ms", "age_max_ms"))
        table.add_row(row["protocol"], row["way"], f"{row['faces']}/{row['answered']}", *ages)
    out.print(table)


CAMERAS = Benchmark("cameras", measure, show, misses=misses)
