"""`swarm bench auto`: nodes of role `auto` that join, leave and die under a steady load.

With the event `fade` the last node is in a network namespace behind a link of 100 Mbit/s, which
drops to 2.5; the event is over when a new plan gives that node no slot. Linux, root.

Every answer is compared with the whole model's. An event is over when each slot of the newest plan
is served by a living node; the time until then is that of the new placement.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.auto_meshes import (
    SETTLES_WITHIN,
    alive,
    any_alive,
    leaves,
    newest,
    start_auto,
    until_settled,
)
from support.cut_link import NamespacedNode, start_in
from support.meshes import mesh_of
from support.slow_link import SlowLink, slow_link
from support.starved import starved

import swarm
from bench.asked import Asked, Workload, ask, is_lost, kind
from bench.fleets.workloads import GOOD, workload_of
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark
from nodes.console import out
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh
from shards.manifest import write_dir
from swarm.errors import Unavailable
from swarm.requests.request import DURABLE

QUARTER = 0.25  # of a core
PAUSED = 12.0  # seconds for which two nodes stand still
MOVES_WITHIN = 100.0  # seconds: a minute between two moves, and patience
FADED, ROUND_TRIP = 2.5, 0.004  # Mbit/s and seconds of a link that fades
QUIET = 5.0  # seconds of load before the first event, and behind each
WARM_UP = 20  # requests


@dataclass(frozen=True)
class AutoPlan:
    """nodes: of role auto, beside a fallback. memory: megabytes that each gives to stages. rate:
    requests a second. budget: seconds of each."""

    nodes: int = 6
    stages: int = 8
    memory: int = 60
    rate: float = 30.0
    budget: float = 5.0
    events: tuple[str, ...] = ("join", "leave", "kill-two")


DRAWN = {"join": 1, "leave": -1, "kill-one": -1, "kill-two": -2}  # nodes more
LEAST, MOST = 4, 8  # nodes of a drawn schedule


def drawn(seed: int, count: int, nodes: int) -> tuple[str, ...]:
    """So many events by chance, between `LEAST` and `MOST` nodes."""
    chance, events = random.Random(seed), []
    for _ in range(count):
        able = [event for event, more in DRAWN.items() if LEAST <= nodes + more <= MOST]
        events.append(chance.choice(able))
        nodes += DRAWN[events[-1]]
    return tuple(events)


@dataclass
class Load:
    """Requests at a steady pace, from `run` until it is cancelled. rate: a second. budget: seconds
    of each."""

    mesh: swarm.Mesh
    workload: Workload
    rate: float
    budget: float
    delivery: str = DURABLE
    began: float = field(default_factory=time.monotonic)
    asked: list[Asked] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    async def run(self) -> None:
        async for index, _ in paced(self.rate):
            self.asked.append(Asked(self.now))
            about = self.workload, index, self.budget, self.began, self.asked[-1], self.delivery
            task = asyncio.create_task(ask(self.mesh, *about))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def ended(self) -> None:
        """Wait for what is under way."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=self.budget + 1)


def busiest(local: LocalMesh) -> list[int]:
    """The process of the node whose slot takes longest; [] where no slot is filled."""
    times = [
        (sum(plan["pace_us"][plan["slot"][0] - 1 : plan["slot"][1]]), status["pid"])
        for status in alive(local)
        for plan in status.get("plans", ())
        if "slot" in plan
    ]
    return [pid for _, pid in sorted(times)[-1:]]


def has_slot(local: LocalMesh, pid: int) -> bool:
    """Whether a node fills a slot of the plan that it knows."""
    statuses = [status for status in alive(local) if status["pid"] == pid]
    return any("slot" in plan for status in statuses for plan in status.get("plans", ()))


async def act(
    local: LocalMesh,
    event: str,
    model: str,
    memory: int,
    slow: contextlib.AsyncExitStack,
    link: SlowLink | None,
) -> None:
    """Let an event happen, and wait until it has. slow: what is slowed stays so until its end.
    link: to the last node that was started at first."""
    match event:
        case "join":
            node = start_auto(local, model, memory)

            def has_measured() -> bool:
                status = local.status_of(node) or {}
                return any(plan["measured"] for plan in status.get("plans", ()))

            await local.until(has_measured, SETTLES_WITHIN)
        case "leave":
            pids = leaves(local, signal.SIGTERM, 1)
            await local.until(lambda: not any_alive(local, pids), SETTLES_WITHIN)
        case "kill-two":
            pids = leaves(local, signal.SIGKILL, 2)
            await local.until(lambda: not any_alive(local, pids), SETTLES_WITHIN)
        case "kill-one":
            pids = leaves(local, signal.SIGKILL, 1)
            await local.until(lambda: not any_alive(local, pids), SETTLES_WITHIN)
        case "pause-two":
            # Taken for dead, their slots are given away; then they come back with their old claims.
            pids = leaves(local, signal.SIGSTOP, 2)
            await asyncio.sleep(PAUSED)
            for node in local.supervisor.nodes:
                if node.pid in pids:
                    node.signal(signal.SIGCONT)
                    node.wanted = True
            await asyncio.sleep(QUIET)
        case "slow":
            before = newest(local)["plan"]
            [pid] = busiest(local)
            await slow.enter_async_context(starved(pid, QUARTER))
            await local.until(lambda: newest(local)["plan"] != before, MOVES_WITHIN)
        case "fade":
            assert link is not None
            [far] = [n.pid for n in local.supervisor.nodes if isinstance(n, NamespacedNode)]
            if not has_slot(local, far):
                raise Unavailable("the node behind the link has no slot that it could lose")
            link.reshape(FADED)
            if not await local.until(lambda: not has_slot(local, far), MOVES_WITHIN):
                raise Unavailable(f"after {MOVES_WITHIN:g} s the node with a slow link has a slot")
        case _:
            raise ValueError(
                f"event {event!r}: join, leave, kill-one, kill-two, pause-two, slow, fade, or cut, "
                "by itself"
            )


async def play(plan: AutoPlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `Unavailable`."""
    fades = "fade" in plan.events
    workload = await asyncio.to_thread(workload_of, plan.stages, is_deep=fades)
    model = workload.model.manifest.model
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="swarm-auto-"))) / "model"
        await asyncio.to_thread(write_dir, folder, workload.model.manifest, workload.model.files)
        link, url = None, ""
        if fades:
            link = stack.enter_context(slow_link(GOOD, ROUND_TRIP))
            server = await stack.enter_async_context(EmbeddedServer(host=link.address))
            url = server.url
        local = await stack.enter_async_context(mesh_of(url=url))
        await local.keep(folder)
        began = time.monotonic()
        for _ in range(plan.nodes - fades):
            start_auto(local, model, plan.memory)
        if link is not None:
            more = ("--memory-mb", str(plan.memory), "--no-shm")
            start_in(link.inside[-1], local, "auto", model, *more)
        local.start("fallback", model)
        await local.ready()
        await until_settled(local, "the start")
        first = time.monotonic() - began
        mesh = await stack.enter_async_context(swarm.connect(local.url, local.name))
        for inputs in workload.inputs[:WARM_UP]:
            await mesh.infer(model, inputs, 5.0)
        load = Load(mesh, workload, plan.rate, plan.budget)
        running = asyncio.create_task(load.run())
        events = []
        try:
            await asyncio.sleep(QUIET)
            for event in plan.events:
                progress(f"{event} …")
                before, at = newest(local), load.now
                await act(local, event, model, plan.memory, stack, link)
                await until_settled(local, event)
                settled = load.now
                await asyncio.sleep(QUIET)
                events.append(
                    {
                        "event": event,
                        "at_s": round(at, 2),
                        "settled_s": round(settled - at, 2),
                        "plan_before": before["plan"],
                        "plan": newest(local)["plan"],
                        "slots": newest(local)["slots"],
                        "p99_ms_before": p99(load.asked, at - QUIET, at),
                        "p99_ms_during": p99(load.asked, at, settled),
                        "p99_ms_after": p99(load.asked, settled, settled + QUIET),
                    }
                )
        finally:
            running.cancel()
            await load.ended()
    statuses = [asked.status for asked in load.asked]
    return {
        "nodes": plan.nodes,
        "stages": plan.stages,
        "memory_mb": plan.memory,
        "requests_per_s": plan.rate,
        "first_placement_s": round(first, 2),
        "requests": len(load.asked),
        "answered": statuses.count("OK"),
        "wrong": sum(asked.wrong for asked in load.asked),
        "lost": sum(is_lost(asked, plan.budget) for asked in load.asked),
        "failed": sorted({f"{a.status}: {kind(a.message)}" for a in load.asked if a.message}),
        "asked_again": sum(asked.attempt > 1 for asked in load.asked),
        "events": events,
    }


def p99(asked: Sequence[Asked], begin: float, end: float) -> float:
    """Milliseconds, of the answered requests that were sent in that time."""
    times = [(a.done - a.sent) * 1e3 for a in asked if begin <= a.sent < end and a.status == "OK"]
    return round(percentile(times, 0.99), 1)


def show(document: dict[str, Any]) -> None:
    """The figures, for people."""
    for name, value in document.items():
        if name != "events":
            out.print(f"{name}: {value}", markup=False, highlight=False)
    for event in document.get("events", ()):
        out.print(str(event), markup=False, highlight=False)


def misses(document: dict[str, Any]) -> list[str]:
    """Sentences of what must not be."""
    reasons = []
    if document["answered"] < document["requests"]:
        reasons.append(f"not all were answered: {document['failed']}")
    if document["wrong"] or document["lost"]:
        reasons.append(f"{document['wrong']} answers were wrong, {document['lost']} were lost")
    return reasons


AUTO = Benchmark("auto", play, show, misses=misses)
