"""`swarm demo`: three shards, a fallback and a live edge; one kill, one takeover, one return.

With --secure: the same with rights, TLS and an encrypted model; see `nodes.demo.secure`.

All parts are separate processes on loopback, and every figure is measured, none assumed.
Each answer is compared with the whole model's, run here beside the mesh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from nodes.cli.status_table import node_view, status_table
from nodes.console import out
from nodes.demo.frame import (
    MODEL,
    PIPELINE,
    StoryOptions,
    StoryRun,
    kill_and_return,
    last_status,
    report,
    run_story,
)
from nodes.demo.record import DemoRecord, summarise
from nodes.demo.secure import SecureStory, all_protected
from nodes.progress import progress
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.runtimes.ort import OrtRuntime
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from shards.split.split import split
from shards.zoo import digits_heldout, digits_lite_model, digits_model
from swarm.scratch import Scratch

SINK = "demo"
READY_WITHIN = 30.0  # seconds


def tell(asked: StoryOptions, secure: bool) -> int:
    """Exit code 0 only if every image was answered, and rightly; with `secure`, only if each
    protection held too."""
    rate = asked.rate or 30.0

    async def story(frame: StoryRun) -> None:
        with progress("demo: splitting the digits model into three shards", silent=asked.as_json):
            expected = await asyncio.to_thread(_whole_model)
            record = DemoRecord(expected, digits_heldout()[1], aloud=not frame.live)
            result = await asyncio.to_thread(
                split,
                digits_model(),
                name=MODEL,
                stages=3,
                lighter=digits_lite_model(),
                bandwidth=ONE_HOST_BYTES_PER_MS,
            )
        how = "with TLS, users and encrypted files" if secure else "open on loopback"
        frame.tell(f"starting a NATS server, {how}, and five node processes …")
        async with contextlib.AsyncExitStack() as stack:
            local = await stack.enter_async_context(local_mesh(secure=secure))
            secured = None
            if local.rights is not None:
                folder = stack.enter_context(Scratch("demo"))
                secured = SecureStory(local, local.rights, folder, record.say)
            flags = [] if secured is None else secured.flags
            size = sum(map(len, result.files.values()))
            with progress("demo: pushing the shards", total=size, silent=asked.as_json) as sent:
                if secured is None:
                    await push(local, result.manifest.to_json(), result.files, sent)
                else:
                    await secured.push(result, sent)
            for role in PIPELINE:
                local.start(role, MODEL, *flags)
            await frame.shown(local, result.manifest, READY_WITHIN)
            local.mesh.link.subscribe(local.mesh.subjects.results(SINK), record.take)
            edge = local.start(
                "edge",
                MODEL,
                *("--source", "digits", "--rate", str(rate), "--sink", SINK),
                *("--on-full", "block", "--budget", "3000", *flags),
            )
            edge.wanted = False
            frame.tell(f"images at {rate:g} a second; shard-2 will be killed …")
            async with _drawn(frame, local, record):
                await local.until(lambda: record.answered > 0, 15.0)
                more = () if secured is None else secured.steps
                await kill_and_return(frame, local, record.takeover, record.say, more)
            status = await last_status(local, edge)
            figures = {} if secured is None else await secured.finish()
            count = int(status.get("edge", {}).get("captured", 0))
            frame.code = _report(record, count, figures, asked.as_json)
            if any(each.stays for each in frame.companions) and not asked.as_json:
                frame.tell("the nodes and the page stay until Ctrl-C")
                await asyncio.Event().wait()

    return run_story(story, asked, seconds=20.0, level=logging.WARNING)


def _whole_model() -> np.ndarray:
    """The whole model's logits for all held-out images, [n, 10]."""
    runtime = OrtRuntime(digits_model())
    images, _ = digits_heldout()
    # One at a time, as the mesh runs them.
    rows = [runtime.run({"image": images[i : i + 1]})["logits"] for i in range(len(images))]
    runtime.close()
    return np.concatenate(rows)


@contextlib.asynccontextmanager
async def _drawn(frame: StoryRun, local: LocalMesh, record: DemoRecord) -> AsyncIterator[None]:
    """Draw the live picture meanwhile, if there is one."""
    if not frame.live:
        yield
        return

    def picture() -> Group:
        now = asyncio.get_running_loop().time()
        part = (now - frame.began) / frame.seconds if frame.began else 0.0
        return live_picture(record, local.statuses, part)

    with Live(picture(), console=out, auto_refresh=False) as screen:

        async def draw() -> None:
            while True:
                await asyncio.sleep(0.125)
                screen.update(picture(), refresh=True)

        drawing = asyncio.create_task(draw(), name="picture")
        try:
            yield
        finally:
            drawing.cancel()


def _report(record: DemoRecord, count: int, secured: dict[str, Any], as_json: bool) -> int:
    doc = summarise(record, count) | secured
    broken = []
    if doc["lost"] or doc["wrong"]:
        broken.append(f"{doc['lost']} images have no answer, {doc['wrong']} a wrong one")
    if not record.takeover.complete:
        broken.append("the takeover or the return did not happen in time")
    if secured and not all_protected(secured):
        broken.append("a protection did not hold")
    kept = "nothing was lost, nothing was wrong" + (", each protection held" if secured else "")
    return report(doc, broken, kept, "swarm up --model YOUR.onnx --stages 3", as_json=as_json)


def live_picture(record: DemoRecord, statuses: dict[str, dict[str, Any]], part: float) -> Group:
    """The nodes, the stream's progress and its figures. part: 0 to 1, of the stream's time."""
    views = [
        node_view(
            status,
            "killed" if record.takeover.killed_at and node == record.takeover.old_node else "",
        )
        for node, status in statuses.items()
    ]
    table = status_table(views, out.width)
    doc = summarise(record, record.answered)
    line = (
        f"{record.answered} answered · {record.wrong} wrong · accuracy {doc['accuracy']:.3f} · "
        f"p50 {doc['latency_p50_ms']:.2f} ms · p99 {doc['latency_p99_ms']:.2f} ms"
    )
    bar = ProgressBar(total=1.0, completed=min(1.0, part), width=60)
    story = Text("\n".join(record.story[-6:]), style="yellow")
    return Group(table, bar, Text(line, style="bold"), Text(record.last), story)
