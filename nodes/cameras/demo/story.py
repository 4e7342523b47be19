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
import sys
import time
from collections.abc import AsyncIterator

from nodes.cameras.demo.record import CameraRecord, broken, summarise
from nodes.demo.frame import (
    StoryOptions,
    StoryRun,
    kill_and_return,
    last_status,
    report,
    run_story,
    start_pipeline,
)
from nodes.up.embedded_cluster import free_ports
from nodes.up.mesh import LocalMesh, local_mesh
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from swarm.errors import InvalidArgument, Unavailable
from swarm.link import LinkMessage

SINK = "demo-camera"
GATE = "ssim-min:0.3"
BUDGET, TAKEOVER = 2000.0, 1000.0  # ms
READY_WITHIN, BEGIN_WITHIN = 30.0, 20.0  # seconds


def tell(asked: StoryOptions) -> int:
    """Exit code 0 only if every promise held."""
    rate = asked.rate or 30.0

    async def story(frame: StoryRun) -> None:
        _check_libraries()
        from nodes.cameras.demo.model import NAME, split_camera_model

        frame.tell("making a detector of cards, and splitting it into three shards …")
        result = await asyncio.to_thread(split_camera_model, 3, ONE_HOST_BYTES_PER_MS)
        camera, view = (int(port) for port in free_ports(2))
        url = f"udp://127.0.0.1:{camera}"
        async with local_mesh() as local:
            await start_pipeline(local, result)
            frame.tell("starting a NATS server, a pipeline of four nodes, a camera and its edge …")
            await frame.shown(local, result.manifest, READY_WITHIN)
            async with _camera(url, round(rate)) as began:
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
                if not await local.until(lambda: record.answered > 0, BEGIN_WITHIN):
                    raise Unavailable("the camera's first frame has no answer")
                await kill_and_return(frame, local, record.takeover, frame.tell)
                status = await last_status(local, edge)
            sent = sum(int(each.get("sent", 0)) for each in status.get("cameras", []))
            await local.until(lambda: record.answered >= sent, 2.0)
            frame.code = _report(record, sent, asked.as_json)

    return run_story(story, asked, seconds=20.0)


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
    words = ("-m", "nodes.cameras.demo.scene", url, str(rate))
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


def _report(record: CameraRecord, sent: int, as_json: bool) -> int:
    doc = summarise(record, sent, BUDGET + TAKEOVER)
    kept = "no frame was lost, none was too old, each answer was true"
    then = "swarm-node --role edge --model NAME --source rtsp://CAMERA --nats URL"
    return report(doc, broken(doc), kept, then, as_json=as_json)
