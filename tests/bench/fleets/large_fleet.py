"""`swarm bench scale --nodes 1000`: a large fleet, measured beside a mesh of five.

Twenty of the fleet's nodes are real processes (`swarm-node`): a pipeline of digits with a fallback
and a gateway, and fifteen nodes of another model. The others are imitated
(`bench.fleets.imitated_nodes`). The mesh of five is the same pipeline with a server of its
own. Both live on the same processors at the same time, and are asked by turns, so that the CPU time
of the imitated nodes, which a fleet does not have in one place, weighs on both alike.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import psutil

from bench.fleets.imitated_nodes import MODELS, Imitation
from bench.fleets.monitored_server import MonitoredServer, ServerReading
from bench.fleets.scale import allow_connections
from bench.fleets.scale_point import STAGES, manifest
from bench.helpers import Helper, helper
from bench.report.figure import percentile, significant
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.errors import Unavailable
from swarm.transport.lane import LaneOptions, make_lanes

FIVE, FLEET = 0, 1  # the meshes' numbers
NAMES = ("five", "fleet")
PIPELINE = ("shard-1", "shard-2", "shard-3", "fallback", "gateway")
VICTIM = "shard-2"
CALM_WITHIN = 240.0  # seconds until each real node knows all others
READY_TIMEOUT = 120.0  # seconds
REPLY_TIMEOUT = 60.0  # seconds
RATE = 50.0  # requests a second while a node is killed
BEFORE, AFTER = (1.0, 1.4), 3.0  # seconds before the kill, from … to, and behind it


@dataclass(frozen=True, slots=True)
class LargeFleetPlan:
    """nodes: of the fleet, more than `real` of them. others: real nodes of the other model. rounds:
    slices of `requests` requests to each mesh, by turns. trials: kills in each mesh, by turns.
    settle: seconds in which a fleet that knows itself becomes quiet. idle: seconds that are
    measured then, in which nothing is asked."""

    nodes: int = 1000
    others: int = 15
    rounds: int = 10
    requests: int = 200
    trials: int = 5
    settle: float = 20.0
    idle: float = 20.0

    @property
    def real(self) -> int:
        """Nodes of the fleet that are processes of their own."""
        return len(PIPELINE) + self.others


class Mesh:
    """One of the two meshes: its server, its processes, its pipeline."""

    def __init__(self, server: MonitoredServer, local: LocalMesh) -> None:
        self.server = server
        self.local = local
        self.pipeline: list[NodeProcess] = []

    async def start(self, model: SplitResult) -> None:
        """Start the pipeline, and wait until it serves."""
        await push(self.local, model.manifest.to_json(), model.files)
        self.pipeline = [self.local.start(role, model.manifest.model) for role in PIPELINE]
        await self.local.ready(READY_TIMEOUT)

    def megabytes(self) -> list[float]:
        """Resident memory of each node of the pipeline."""
        return [psutil.Process(node.pid).memory_info().rss / 1e6 for node in self.pipeline]

    def known(self) -> list[int]:
        """Living nodes that each node of the pipeline knows, itself included, by its last status:
        in the largest fleets it is up to 10 s old."""
        statuses = [self.local.status_of(node) for node in self.pipeline]
        return [0 if status is None else status["gossip"]["peers"]["alive"] for status in statuses]

    def suspicions(self) -> int:
        """Suspicions and deaths that the nodes of the pipeline have seen."""
        statuses = [self.local.status_of(node) or {} for node in self.pipeline]
        events = [status.get("gossip", {}).get("events", {}) for status in statuses]
        return sum(each.get("suspected", 0) + each.get("died", 0) for each in events)


async def measure_large_fleet(plan: LargeFleetPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `SwarmError`, `WrongAnswer`, `RuntimeError`, `TimeoutError`."""
    allow_connections(4 * plan.nodes + 500)
    model = await asyncio.to_thread(split, digits_model(), name="digits", stages=STAGES)
    async with AsyncExitStack() as stack:
        five, fleet = [await stack.enter_async_context(_mesh(name)) for name in NAMES]
        progress("five nodes start …")
        await five.start(model)
        progress(f"{plan.nodes - plan.real} imitated nodes start …")
        status = five.local.status_of(five.pipeline[0])
        assert status is not None
        imitated = await stack.enter_async_context(_imitated(fleet, plan.nodes - plan.real, status))
        progress(f"{plan.real} real nodes join …")
        began = time.monotonic()
        await push(fleet.local, manifest("other"), {})
        for number in range(plan.others):
            fleet.local.start(f"shard-{number % STAGES + 1}", "other")
        await fleet.start(model)
        ready = time.monotonic() - began
        progress(f"until each knows all {plan.nodes} …")
        everybody = await fleet.local.until(lambda: min(fleet.known()) >= plan.nodes, CALM_WITHIN)
        if not everybody:
            raise Unavailable(f"after {CALM_WITHIN:.0f} s nodes know {fleet.known()} nodes")
        knows = time.monotonic() - began
        asker = await stack.enter_async_context(_asker(five, fleet))
        await asyncio.sleep(plan.settle)
        progress("nothing is asked …")
        idle = await _idle(plan, five, fleet, imitated)
        latencies = await _latencies(plan, asker, progress)
        gaps = await _takeovers(plan, (five, fleet), asker, progress)
        memory = [median(mesh.megabytes()) for mesh in (five, fleet)]
    return {
        "nodes": plan.nodes,
        "real": plan.real,
        "ready_s": significant(ready),
        "knows_all_s": significant(knows),
        "idle": idle,
        "requests": latencies,
        "takeovers": gaps,
        "memory_mb": {
            **dict(zip(NAMES, map(significant, memory), strict=True)),
            "more": significant(memory[FLEET] - memory[FIVE]),
        },
    }


# --- what lives --------------------------------------------------------------------------------


@asynccontextmanager
async def _mesh(name: str) -> AsyncIterator[Mesh]:
    async with (
        MonitoredServer() as server,
        local_mesh(url=server.url, name=name, shm=False) as local,
    ):
        yield Mesh(server, local)


@asynccontextmanager
async def _imitated(
    fleet: Mesh, count: int, status: dict[str, Any]
) -> AsyncIterator[psutil.Process]:
    """The process that imitates `count` nodes, which all pull."""
    link, subjects = fleet.local.mesh.link, fleet.local.mesh.subjects
    for number in range(MODELS):
        await make_lanes(link, subjects, f"imitated-{number}", "1", STAGES, LaneOptions())
    plan = Imitation(fleet.server.url, fleet.local.name, count, status)
    async with helper("bench.fleets.imitated_nodes", asdict(plan), READY_TIMEOUT) as imitating:
        await imitating.answer(within=READY_TIMEOUT)
        yield psutil.Process(imitating.process.pid)


@asynccontextmanager
async def _asker(*meshes: Mesh) -> AsyncIterator[Helper]:
    urls = [(mesh.server.url, mesh.local.name) for mesh in meshes]
    async with helper("bench.fleets.asking", urls) as asker:
        await asker.answer(within=REPLY_TIMEOUT)
        yield asker


# --- what is measured --------------------------------------------------------------------------


async def _idle(
    plan: LargeFleetPlan, five: Mesh, fleet: Mesh, imitated: psutil.Process
) -> dict[str, Any]:
    """What both servers do while nothing is asked; CPU in percent of a core."""
    suspected = fleet.suspicions()
    spent = sum(imitated.cpu_times()[:2])
    before = [await mesh.server.read() for mesh in (five, fleet)]
    began = time.monotonic()
    await asyncio.sleep(plan.idle)
    after = [await mesh.server.read() for mesh in (five, fleet)]
    seconds = time.monotonic() - began
    spent = sum(imitated.cpu_times()[:2]) - spent
    return {
        **{
            name: _rates(first, second, seconds)
            for name, first, second in zip(NAMES, before, after, strict=True)
        },
        "imitated_cpu_percent": significant(100 * spent / seconds),
        "suspected": fleet.suspicions() - suspected,
    }


def _rates(before: ServerReading, after: ServerReading, seconds: float) -> dict[str, float]:
    return {
        "server_cpu_percent": significant(100 * (after.cpu - before.cpu) / seconds),
        "messages_per_s": significant((after.messages - before.messages) / seconds),
        "bytes_per_s": significant((after.octets - before.octets) / seconds),
        "server_rss_mb": significant(after.rss / 1e6),
        "connections": after.connections,
    }


async def _latencies(plan: LargeFleetPlan, asker: Helper, progress: Progress) -> dict[str, Any]:
    """Slices by turns. ratio: of the medians of a round, the fleet's to those of five."""
    rows: list[list[list[float]]] = []
    for number, name in by_turns(plan.rounds, NAMES):
        progress(f"requests, round {number} of {plan.rounds} …")
        if number > len(rows):
            rows.append([[], []])
        which = NAMES.index(name)
        command = {"do": "alone", "mesh": which, "requests": plan.requests}
        rows[-1][which] = await asker.answer(command)
    ratios = sorted(median(fleet) / median(five) for five, fleet in rows)
    document: dict[str, Any] = {}
    for mesh, name in enumerate(NAMES):
        all_of_it = [latency for row in rows for latency in row[mesh]]
        document[name] = {
            "p50_ms": significant(1e3 * percentile(all_of_it, 0.5)),
            "p99_ms": significant(1e3 * percentile(all_of_it, 0.99)),
        }
    document["ratio"] = significant(median(ratios))
    document["ratios"] = [significant(ratio) for ratio in ratios]
    return document


async def _takeovers(
    plan: LargeFleetPlan, meshes: tuple[Mesh, Mesh], asker: Helper, progress: Progress
) -> dict[str, Any]:
    """SIGKILL of the pipeline's second stage, by turns: milliseconds without an answer."""
    gaps: tuple[list[float], list[float]] = ([], [])
    lost = [0, 0]
    for number, name in by_turns(plan.trials, NAMES):
        progress(f"a node is killed, trial {number} of {plan.trials} …")
        which = NAMES.index(name)
        rows, at = await _kill(meshes[which], which, asker)
        lost[which] += sum(not right for _, _, right in rows)
        gaps[which].append(longest_gap(rows, at))
    return {
        name: {
            "gap_ms": [significant(1e3 * gap) for gap in gaps[which]],
            "p50_ms": significant(1e3 * median(gaps[which])) if gaps[which] else 0.0,
            "lost": lost[which],
        }
        for which, name in enumerate(NAMES)
    }


async def _kill(mesh: Mesh, which: int, asker: Helper) -> tuple[list[Any], float]:
    """Returns what became of the requests, and when the node was killed. The node is back then."""
    victim = next(node for node in mesh.pipeline if node.role == VICTIM)
    seconds = BEFORE[1] + AFTER
    asked = asyncio.create_task(
        asker.answer({"do": "paced", "mesh": which, "rate": RATE, "seconds": seconds})
    )
    await asyncio.sleep(random.uniform(*BEFORE))
    victim.signal(signal.SIGKILL)
    at = time.monotonic()
    rows = await asked
    # The supervisor starts it again.
    back = await mesh.local.until(
        lambda: victim.alive and (mesh.local.status_of(victim) or {}).get("state") == "ready",
        READY_TIMEOUT,
    )
    if not back:
        raise Unavailable(f"{VICTIM} did not come back:\n{mesh.local.tail(victim)}")
    await asyncio.sleep(AFTER)  # until the fallback has given the stage back
    return rows, at


def longest_gap(rows: list[Any], at: float) -> float:
    """Seconds of the longest time between two answers in a row, from the last one before `at` on.

    rows: when each request was sent, when it was done, and whether it was answered.
    """
    done = sorted(finished for _, finished, right in rows if right)
    last = max((moment for moment in done if moment <= at), default=at)
    return max((b - a for a, b in pairwise([last, *(m for m in done if m > at)])), default=0.0)


MOST_SERVER_CPU = 25.0  # percent of a core, idle
MOST_LATENCY_RATIO = 1.1
MOST_MEMORY_MB = 15.0  # more than a node of five has
# A takeover is a few rounds of gossip, which begin at any moment: medians of few trials differ by
# as much as a round.
ROUND_MS = 200.0


def misses(document: dict[str, Any]) -> list[str]:
    """A sentence for each target that is missed."""
    idle, requests = document["idle"], document["requests"]
    takeovers, memory = document["takeovers"], document["memory_mb"]
    found = []
    if (cpu := idle["fleet"]["server_cpu_percent"]) > MOST_SERVER_CPU:
        found.append(f"the idle server takes {cpu:g} % of a core, at most {MOST_SERVER_CPU:g}")
    if (ratio := requests["ratio"]) > MOST_LATENCY_RATIO:
        found.append(f"a request takes {ratio:g} times that of five, at most {MOST_LATENCY_RATIO}")
    five, fleet = takeovers["five"]["p50_ms"], takeovers["fleet"]["p50_ms"]
    if fleet > five + ROUND_MS:
        found.append(f"a takeover takes {fleet:g} ms, with five nodes {five:g}")
    if memory["more"] > MOST_MEMORY_MB:
        found.append(f"a node takes {memory['more']:g} MB more, at most {MOST_MEMORY_MB:g}")
    for name in ("five", "fleet"):
        if lost := takeovers[name]["lost"]:
            found.append(f"{lost} requests of {name} were lost around a kill")
    return found


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_large_fleet`."""
    idle, requests = document["idle"], document["requests"]
    takeovers, memory = document["takeovers"], document["memory_mb"]
    table = new_table("", "", "five nodes", f"{document['nodes']} nodes")

    def row(label: str, values: dict[str, Any], key: str) -> None:
        table.add_row(label, f"{values['five'][key]:g}", f"{values['fleet'][key]:g}")

    row("idle: server, % of a core", idle, "server_cpu_percent")
    row("idle: messages/s", idle, "messages_per_s")
    row("idle: KB/s", _kilobytes(idle), "kb")
    row("server, MB", idle, "server_rss_mb")
    row("connections", idle, "connections")
    row("request p50, ms", requests, "p50_ms")
    row("request p99, ms", requests, "p99_ms")
    row("shard-2 killed: no answer for, ms (p50)", takeovers, "p50_ms")
    row("requests lost", takeovers, "lost")
    table.add_row("a node, MB", f"{memory['five']:g}", f"{memory['fleet']:g}")
    out.print(table)
    out.print(
        f"{document['real']} nodes of the fleet are real processes, the others are imitated "
        f"({idle['imitated_cpu_percent']:g} % of a core). Real nodes were ready after "
        f"{document['ready_s']:g} s and knew all after {document['knows_all_s']:g} s. A request, "
        f"by turns: {requests['ratio']:g} times ({requests['ratios'][0]:g} to "
        f"{requests['ratios'][-1]:g}). Suspicions while idle: {idle['suspected']}.",
        highlight=False,
    )


def _kilobytes(idle: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {name: {"kb": idle[name]["bytes_per_s"] // 1000} for name in ("five", "fleet")}


LARGE_FLEET = Benchmark("large-fleet", measure_large_fleet, show, misses=misses)
