"""`swarm demo`: three shards, a fallback and a live edge; one kill, one takeover, one return.

With --secure: the same with rights, TLS and an encrypted model; see `nodes.demo.secure`.

All parts are separate processes on loopback, and every figure is measured, none assumed.
Each answer is compared with the whole model's, run here beside the mesh.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from nodes.console import err, out, print_json
from nodes.demo.frame import MODEL, PIPELINE, Frame, kill, run_story
from nodes.demo.record import DemoRecord, summarise
from nodes.demo.secure import SecureStory, all_protected
from nodes.progress import progress
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from nodes.watch.status_table import node_view, status_table
from shards.runtimes.ort import OrtRuntime
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from shards.split.split import split
from shards.zoo import digits_heldout, digits_lite_model, digits_model
from swarm.scratch import Scratch

SINK = "demo"
ROTATE_AT, KILL_AT, REVOKE_AT, RESTART_AT = 0.15, 0.4, 0.45, 0.6  # parts of the stream's time
READY_WITHIN = 30.0  # seconds
RETURN_WITHIN = 15.0  # seconds that the stream goes on while shard-2 is not back yet


def run_demo(seconds: float, rate: float, *, secure: bool, as_json: bool, dashboard: bool) -> int:
    """Exit code 0 only if every image was answered, and rightly; with `secure`, only if each
    protection held too. dashboard: shows the mesh on a page, and keeps both until Ctrl-C."""

    async def story(frame: Frame) -> None:
        with progress("demo: splitting the digits model into three shards", silent=as_json):
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
            with progress("demo: pushing the shards", total=size, silent=as_json) as sent:
                if secured is None:
                    await push(local, result.manifest.to_json(), result.files, sent)
                else:
                    await secured.push(result, sent)
            for role in PIPELINE:
                local.start(role, MODEL, *flags)
            await stack.enter_async_context(frame.shown(local, READY_WITHIN))
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
                await _takeover(frame, local, record, secured)
            count = await _end_of_stream(local, edge)
            figures = None if secured is None else await secured.finish()
            frame.code = _report(record, count, as_json, figures)
            if dashboard and not as_json:
                frame.tell("the nodes and the page stay until Ctrl-C")
                await asyncio.Event().wait()

    return run_story(story, seconds, as_json=as_json, page=dashboard, level=logging.WARNING)


def _whole_model() -> np.ndarray:
    """The whole model's logits for all held-out images, [n, 10]."""
    runtime = OrtRuntime(digits_model())
    images, _ = digits_heldout()
    # One at a time, as the mesh runs them.
    rows = [runtime.run({"image": images[i : i + 1]})["logits"] for i in range(len(images))]
    runtime.close()
    return np.concatenate(rows)


async def _takeover(
    frame: Frame, local: LocalMesh, record: DemoRecord, secured: SecureStory | None
) -> None:
    """Stream; kill shard-2; bring it back. secured: has steps between."""
    victim = next(node for node in local.supervisor.nodes if node.role == "shard-2")
    await local.until(lambda: record.answered > 0, 15.0)
    frame.began = asyncio.get_running_loop().time()
    if secured is not None:
        await frame.until_part(ROTATE_AT)
        await secured.rotate()
    await frame.until_part(KILL_AT)
    record.say(f"shard-2 (pid {victim.pid}) gets SIGKILL")
    record.killed(str((local.status_of(victim) or {}).get("node", "")))
    kill(victim)
    if secured is not None:
        await frame.until_part(REVOKE_AT)
        await secured.revoke(victim)
    await frame.until_part(RESTART_AT)
    record.say("shard-2 starts again")
    record.restarted()
    if secured is not None:
        secured.renew(victim)
    victim.start()
    victim.wanted = True
    await frame.until_part(1.0)
    await local.until(lambda: record.returned_at > 0, RETURN_WITHIN)


@contextlib.asynccontextmanager
async def _drawn(frame: Frame, local: LocalMesh, record: DemoRecord) -> AsyncIterator[None]:
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


async def _end_of_stream(local: LocalMesh, edge: NodeProcess) -> int:
    """Let the edge finish; returns how many images it captured, by its own last status."""
    edge.signal(signal.SIGTERM)
    await local.until(lambda: (local.status_of(edge) or {}).get("state") == "left", 10.0)
    status = local.status_of(edge) or {}
    return int(status.get("edge", {}).get("captured", 0))


def _report(record: DemoRecord, count: int, as_json: bool, secured: dict[str, Any] | None) -> int:
    doc = summarise(record, count) | (secured or {})
    protected = secured is None or all_protected(secured)
    if as_json:
        print_json(doc)
    else:
        out.print()
        for key, value in doc.items():
            out.print(f"  {key.replace('_', ' '):<28}{json.dumps(value)}", highlight=False)
        good = doc["lost"] == 0 and doc["wrong"] == 0
        out.print(
            "[bold green]nothing was lost, nothing was wrong[/]"
            if good
            else "[bold red]something was lost or wrong[/]"
        )
        if secured is not None:
            out.print(
                "[bold green]each protection held[/]"
                if protected
                else "[bold red]a protection did not hold[/]"
            )
        out.print("next: swarm up --model YOUR.onnx --stages 3")
    complete = record.taken_over_at and record.returned_at
    if not complete:
        err.print("demo: the takeover or the return did not happen in time")
    return 0 if doc["lost"] == 0 and doc["wrong"] == 0 and complete and protected else 1


def live_picture(record: DemoRecord, statuses: dict[str, dict[str, Any]], part: float) -> Group:
    """The nodes, the stream's progress and its figures. part: 0 to 1, of the stream's time."""
    views = [
        node_view(status, "killed" if record.killed_at and node == record.old_node else "")
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
