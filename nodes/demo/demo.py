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
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from nodes.console import err, guarded, out, print_json
from nodes.demo.record import DemoRecord, summarise
from nodes.demo.secure import SecureStory, all_held
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.progress import progress
from nodes.up.dashboard_process import dashboard_of
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from nodes.watch.status_table import node_view, status_table
from shards.runtimes.ort import OrtRuntime
from shards.split.split import split
from shards.zoo import digits_heldout, digits_lite_model, digits_model
from swarm.scratch import Scratch

SINK = "demo"
KILL_AT, RESTART_AT = 0.4, 0.6  # parts of the stream's time
LOCAL_BANDWIDTH = 1e6  # bytes a millisecond: loopback, so that compute decides the cuts
RETURN_WITHIN = 15.0  # seconds that the stream goes on while shard-2 is not back yet


def run_demo(seconds: float, rate: float, *, secure: bool, as_json: bool, dashboard: bool) -> int:
    """Exit code 0 only if every image was answered, and rightly; with `secure`, only if each
    protection held too. dashboard: shows the mesh on a page, and keeps both until Ctrl-C."""
    set_up_logging(LogForm())
    if as_json or not out.is_terminal:
        logging.getLogger("swarm").setLevel(logging.WARNING)

    async def main() -> int:
        stop = stop_on_signals()
        tell: Callable[[str], None] = err.print
        with progress("demo: splitting the digits model into three shards", silent=as_json):
            record = DemoRecord(await asyncio.to_thread(_whole_model), digits_heldout()[1])
            result = await asyncio.to_thread(
                split,
                digits_model(),
                name="digits",
                stages=3,
                lighter=digits_lite_model(),
                bandwidth=LOCAL_BANDWIDTH,
            )
        how = "with TLS, users and encrypted files" if secure else "open on loopback"
        tell(f"demo: starting a NATS server, {how}, and five node processes …")
        async with contextlib.AsyncExitStack() as stack:
            local = await stack.enter_async_context(local_mesh(secure=secure))
            secured = await _secured(stack, local, record, as_json)
            flags = [] if secured is None else secured.flags
            size = sum(map(len, result.files.values()))
            with progress("demo: pushing the shards", total=size, silent=as_json) as sent:
                if secured is None:
                    await push(local, result.manifest.to_json(), result.files, sent)
                else:
                    await secured.push(result, sent)
            for role in ("shard-1", "shard-2", "shard-3", "fallback"):
                local.start(role, "digits", *flags)
            await local.ready()
            if dashboard:
                tell(f"demo: watch it at {await stack.enter_async_context(dashboard_of(local))}")
            local.mesh.link.subscribe(local.mesh.subjects.results(SINK), record.take)
            # The restart is part of the story: the supervisor leaves it to this command.
            victim = next(n for n in local.supervisor.nodes if n.role == "shard-2")
            victim.wanted = False
            edge = local.start(
                "edge",
                "digits",
                *("--source", "digits", "--rate", str(rate), "--sink", SINK),
                *("--on-full", "block", "--budget", "3000", *flags),
            )
            edge.wanted = False
            tell(f"demo: images at {rate:g} a second; shard-2 will be killed …")
            await _story(local, record, victim, seconds, stop, as_json, secured)
            count = await _end_of_stream(local, edge)
            figures = None
            if secured is not None and not stop.is_set():
                figures = await secured.finish()
            if stop.is_set():
                return 130
            code = _report(record, count, as_json, figures)
            if dashboard and not as_json:
                tell("demo: the nodes and the page stay until Ctrl-C")
                await stop.wait()
        return code

    return guarded(main, as_json)


async def _secured(
    stack: contextlib.AsyncExitStack, local: LocalMesh, record: DemoRecord, as_json: bool
) -> SecureStory | None:
    """The steps of --secure; None where the mesh is open."""
    if local.rights is None:
        return None
    folder = stack.enter_context(Scratch("demo"))
    aloud = as_json or not out.is_terminal
    story = SecureStory(local, local.rights, folder, lambda text: _say(record, aloud, text))
    stack.push_async_callback(story.cancel)
    return story


def _whole_model() -> np.ndarray:
    """The whole model's logits for all held-out images, [n, 10]."""
    runtime = OrtRuntime(digits_model())
    images, _ = digits_heldout()
    # One at a time, as the mesh runs them.
    rows = [runtime.run({"image": images[i : i + 1]})["logits"] for i in range(len(images))]
    runtime.close()
    return np.concatenate(rows)


async def _story(
    local: LocalMesh,
    record: DemoRecord,
    victim: NodeProcess,
    seconds: float,
    stop: asyncio.Event,
    as_json: bool,
    secured: SecureStory | None,
) -> None:
    """Stream; kill shard-2; bring it back. secured: has steps between."""
    await _until(lambda: record.answered > 0, 15.0, stop)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        live = None
        if not as_json and out.is_terminal:
            live = stack.enter_context(Live(console=out, refresh_per_second=8))
        while not stop.is_set():
            now = time.monotonic()
            part = (now - began) / seconds
            if secured is not None:
                secured.at(part)
            if record.killed_at == 0.0 and part >= KILL_AT:
                _say(record, live is None, f"shard-2 (pid {victim.pid}) gets SIGKILL")
                record.killed(str((local.status_of(victim) or {}).get("node", "")))
                victim.signal(signal.SIGKILL)
                if secured is not None:
                    secured.killed(victim, part)
            if record.restarted_at == 0.0 and part >= RESTART_AT:
                _say(record, live is None, "shard-2 starts again")
                record.restarted()
                if secured is not None:
                    secured.renew(victim)
                victim.start()
                victim.wanted = True
            if live is not None:
                live.update(live_picture(record, local.statuses, part))
            if part > 1 and (record.returned_at or now - began > seconds + RETURN_WITHIN):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await stop.wait()


async def _end_of_stream(local: LocalMesh, edge: NodeProcess) -> int:
    """Let the edge finish; returns how many images it captured, by its own last status."""
    edge.signal(signal.SIGTERM)
    deadline = time.monotonic() + 10.0
    while edge.alive and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await local.until(lambda: (local.status_of(edge) or {}).get("state") == "left", 1.0)
    status = local.status_of(edge) or {}
    return int(status.get("edge", {}).get("captured", 0))


def _say(record: DemoRecord, aloud: bool, text: str) -> None:
    record.story.append(text)
    if aloud:
        err.print(f"demo: {text}")


async def _until(condition: Callable[[], bool], timeout: float, stop: asyncio.Event) -> None:
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline and not stop.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _report(record: DemoRecord, count: int, as_json: bool, secured: dict[str, Any] | None) -> int:
    doc = summarise(record, count) | (secured or {})
    held = secured is None or all_held(secured)
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
                if held
                else "[bold red]a protection did not hold[/]"
            )
        out.print("next: swarm up --model YOUR.onnx --stages 3")
    complete = record.taken_over_at and record.returned_at
    if not complete:
        err.print("demo: the takeover or the return did not happen in time")
    return 0 if doc["lost"] == 0 and doc["wrong"] == 0 and complete and held else 1


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
