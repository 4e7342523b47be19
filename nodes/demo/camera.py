"""`swarm demo --camera`: a camera on the mesh, and a kill -9 in mid-stream.

    camera process ─H.264, UDP─► edge (newest frame, gate) ─► shard-1 ─► shard-2 ─► shard-3
                                                              fallback: stands in for shard-2

The camera shows a card with a digit, and knows where it is: each answer is held against that. No
frame that was sent may be lost, and none may be older at its result than its budget and a takeover.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator

from nodes.demo.camera_record import CameraRecord, broken, summarise
from nodes.demo.frame import PIPELINE, Frame, kill, report, run_story
from nodes.up.embedded_cluster import free_ports
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from swarm.errors import InvalidArgument, Unavailable
from swarm.link import LinkMessage

SINK = "demo-camera"
GATE = "ssim-min:0.3"
BUDGET, TAKEOVER = 2000.0, 1000.0  # ms
KILL_AT, RESTART_AT = 0.4, 0.6  # parts of the stream's time
READY_WITHIN, RETURN_WITHIN, BEGIN_WITHIN = 30.0, 15.0, 20.0  # seconds


def run_camera_demo(seconds: float, rate: float, *, as_json: bool, dashboard: bool) -> int:
    """Exit code 0 only if every promise held. rate: frames a second."""

    async def story(frame: Frame) -> None:
        _check_libraries()
        from nodes.demo.camera_model import NAME, split_camera_model

        frame.tell("making a detector of cards, and splitting it into three shards …")
        result = await asyncio.to_thread(split_camera_model, 3, ONE_HOST_BYTES_PER_MS)
        camera, view = (int(port) for port in free_ports(2))
        url = f"udp://127.0.0.1:{camera}"
        async with local_mesh() as local:
            await push(local, result.manifest.to_json(), result.files)
            for role in PIPELINE:
                local.start(role, NAME)
            frame.tell("starting a NATS server, a pipeline of four nodes, a camera and its edge …")
            async with frame.shown(local, READY_WITHIN), _camera(url, round(rate)) as began:
                record = CameraRecord(round(rate), began)
                _listen(local, record)
                edge = local.start(
                    "edge",
                    NAME,
                    *("--source", url, "--sink", SINK, "--budget", f"{BUDGET:g}"),
                    *("--gate", GATE, "--view", f"127.0.0.1:{view}"),
                )
                edge.wanted = False
                frame.tell(f"see it at http://127.0.0.1:{view}/ meanwhile")
                await _takeover(frame, local, record)
                edge.signal(signal.SIGTERM)
                left = await local.until(
                    lambda: (local.status_of(edge) or {}).get("state") == "left", 10.0
                )
                status = local.status_of(edge) or {}
            sent = sum(int(each.get("sent", 0)) for each in status.get("cameras", []))
            await local.until(lambda: record.answered >= sent, 2.0)
            frame.code = _report(record, sent if left else 0, as_json)

    return run_story(story, seconds, as_json=as_json, page=dashboard, level=logging.ERROR)


def _check_libraries() -> None:
    try:
        import av  # noqa: F401
        import cv2  # noqa: F401
    except ModuleNotFoundError as error:
        text = f"demo --camera: {error}: pip install 'swarm-mesh[perception]'"
        raise InvalidArgument(text) from None


@contextlib.asynccontextmanager
async def _camera(url: str, rate: int) -> AsyncIterator[float]:
    """A camera in a process of its own; gives the moment of its first frame."""
    words = ("-m", "nodes.demo.camera_scene", url, str(rate))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe)
    try:
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN):
                line = await process.stdout.readline()
        if not line.strip():
            raise Unavailable("the camera's process did not begin to send")
        yield float(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _listen(local: LocalMesh, record: CameraRecord) -> None:
    def take(message: LinkMessage) -> None:
        record.take(json.loads(bytes(message.data)), time.monotonic())

    local.mesh.link.subscribe(local.mesh.subjects.results(SINK), take)


async def _takeover(frame: Frame, local: LocalMesh, record: CameraRecord) -> None:
    victim = next(node for node in local.supervisor.nodes if node.role == "shard-2")
    if not await local.until(lambda: record.answered > 0, BEGIN_WITHIN):
        raise Unavailable("the camera's first frame has no answer")
    frame.began = asyncio.get_running_loop().time()
    await frame.until_part(KILL_AT)
    frame.tell(f"shard-2 (pid {victim.pid}) gets SIGKILL")
    record.old_node = str((local.status_of(victim) or {}).get("node", ""))
    record.killed_at = time.monotonic()
    kill(victim)
    await frame.until_part(RESTART_AT)
    frame.tell("shard-2 starts again")
    record.restarted_at = time.monotonic()
    victim.start()
    victim.wanted = True
    await frame.until_part(1.0)
    await local.until(lambda: record.returned_at > 0, RETURN_WITHIN)


def _report(record: CameraRecord, sent: int, as_json: bool) -> int:
    doc = summarise(record, sent, BUDGET + TAKEOVER)
    kept = "no frame was lost, none was too old, each answer was true"
    then = "swarm-node --role edge --model NAME --source rtsp://CAMERA --nats URL"
    return report(doc, broken(doc), kept, then, as_json=as_json)
