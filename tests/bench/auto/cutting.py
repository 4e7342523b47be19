"""`swarm bench auto --events cut`: a mesh of auto nodes whose network is cut in two, and heals.

Three servers are a cluster: two of them, and more than half of the nodes, are on this side; one
server, the other nodes and a fallback are in a network namespace. Both halves are asked all the
time, by clients of their own, and go on as far as they can: desired state can be written by the
half with two servers alone. Counted behind the heal: plans, moves, requests. Linux, root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.auto_meshes import start_auto, until_settled
from support.cut_cluster import CutCluster, behind, cut_cluster
from support.cut_link import start_in
from support.meshes import mesh_of

import swarm
from bench.asked import Workload, is_lost, kind
from bench.auto.auto import Load, show
from bench.fleets.workloads import workload_of
from bench.report.frame import Benchmark
from nodes.up.mesh import LocalMesh
from shards.manifest import write_dir
from swarm.auto.proposing import MOVE_EVERY
from swarm.errors import InvalidArgument
from swarm.link import LinkMessage

EARLY = 1.0  # seconds that news of a plan may take here, and its successor's not
FAR = 2  # of the nodes; a fallback is on each side
QUIET = 5.0  # seconds of load before the cut
WARM_UP = 20  # requests
STAGES = 8
BUDGET = 5.0  # seconds of each request
FAR_RATE = 5.0  # requests a second behind the link, of each way of delivery

Slot = tuple[int, int]


@dataclass(frozen=True)
class CutPlan:
    """nodes: of role auto, on both sides. memory: megabytes that each gives to stages. rate:
    requests a second on this side. cut: seconds without a network between the halves. watched:
    seconds behind the heal; two plans that can run follow each other after a minute."""

    nodes: int = 6
    memory: int = 60
    rate: float = 15.0
    cut: float = 30.0
    watched: float = 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """A node's status: the number of the plan that it knows, 0 for none, and the slot that it fills
    of it. at: seconds since the load began."""

    at: float
    node: str
    plan: int
    slot: Slot | None


@dataclass(frozen=True, slots=True)
class Written:
    """A plan that was put into desired state."""

    at: float
    number: int
    proposer: str
    reason: str


@dataclass
class Watch:
    """What both halves tell. began: of the times."""

    began: float = field(default_factory=time.monotonic)
    told: list[Told] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)

    def follow(self, mesh: swarm.Mesh) -> None:
        """Take in what reaches this client."""
        mesh.link.subscribe(mesh.subjects.status_all, self._take_status)
        mesh.link.subscribe(mesh.subjects.config_all, self._take_key)

    def _take_status(self, message: LinkMessage) -> None:
        status = json.loads(bytes(message.data))
        if status["role"] != "auto" or not status.get("plans"):
            return
        [plan] = status["plans"]
        slot = (plan["slot"][0], plan["slot"][1]) if "slot" in plan else None
        at = time.monotonic() - self.began
        self.told.append(Told(at, status["node"], plan.get("plan", 0), slot))

    def _take_key(self, message: LinkMessage) -> None:
        if ".config.plan." not in message.subject or not message.data:
            return
        plan = json.loads(bytes(message.data))
        at = time.monotonic() - self.began
        written = Written(at, plan["number"], plan["proposer"], plan["reason"])
        if all(each.number != written.number for each in self.written):
            self.written.append(written)


def agreement(told: Sequence[Told], nodes: int, healed: float) -> tuple[float | None, float]:
    """Seconds from the heal until all nodes told one plan, None where that never was; and the
    longest time from then on for which they told more than one."""
    latest: dict[str, int] = {}
    first: float | None = None
    apart, since = 0.0, None
    for each in sorted(told, key=lambda t: t.at):
        if each.at < healed:
            continue
        latest[each.node] = each.plan
        agree = len(latest) == nodes and len(set(latest.values())) == 1
        if agree and first is None:
            first = each.at - healed
        if first is None:
            continue
        if agree:
            apart = max(apart, each.at - since) if since is not None else apart
            since = None
        elif since is None:
            since = each.at
    if since is not None:
        apart = max(apart, max(each.at for each in told) - since)
    return first, apart


def slots_of(told: Sequence[Told], healed: float, plan: int) -> dict[str, list[Slot | None]]:
    """The slots that each node told behind the heal, one after the other; first the one that it
    had then. Only of plans from this number on, that of the plan in force at the heal. The same
    stages in another plan are the same slot."""
    found: dict[str, list[Slot | None]] = {}
    for each in sorted(told, key=lambda t: t.at):
        if each.plan < plan:
            continue
        row = found.setdefault(each.node, [])
        if each.at < healed:
            row[:] = [each.slot]
        elif not row or row[-1] != each.slot:
            row.append(each.slot)
    return found


def went_back(row: Sequence[Slot | None]) -> bool:
    """Whether a node went to and fro: it filled a slot, left it, and filled it again. row: no two
    of it that follow each other are alike."""
    filled = [slot for slot in row if slot is not None]
    return len(filled) != len(set(filled))


def requests_of(load: Load, cut: float, healed: float) -> dict[str, Any]:
    """What became of a load's requests, by when they were sent."""
    parts = {"before": (0.0, cut), "cut": (cut, healed), "after": (healed, float("inf"))}
    found: dict[str, Any] = {
        "lost": sum(is_lost(asked, load.budget) for asked in load.asked),
        "wrong": sum(asked.wrong for asked in load.asked),
    }
    for name, (begin, end) in parts.items():
        part = [asked for asked in load.asked if begin <= asked.sent < end]
        failed = Counter(f"{a.status}: {kind(a.message)}" for a in part if a.status != "OK")
        found[name] = {
            "requests": len(part),
            "answered": sum(asked.status == "OK" for asked in part),
            "failed": dict(failed),
        }
    answers = sorted(asked.done - healed for asked in load.asked if asked.status == "OK")
    found["first_answer_after_heal_s"] = next((round(at, 2) for at in answers if at > 0), None)
    gaps = [after - before for before, after in pairwise(answers)]
    found["longest_gap_s"] = round(max(gaps, default=inf), 2)
    return found


@dataclass
class Halves:
    """A mesh that runs on both sides."""

    plan: CutPlan
    local: LocalMesh
    servers: CutCluster
    workload: Workload
    watch: Watch
    loads: dict[str, Load] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return self.workload.model.manifest.model

    async def start(self) -> None:
        for _ in range(self.plan.nodes - FAR):
            start_auto(self.local, self.model, self.plan.memory)
        self.local.start("fallback", self.model)
        more = ("--memory-mb", str(self.plan.memory), "--no-shm")
        where, url = self.servers.link.node_namespace, self.servers.far
        for role in ("auto",) * FAR + ("fallback",):
            start_in(where, self.local, role, self.model, *more, url=url)
        await self.local.ready()
        await until_settled(self.local, "the start")

    async def ask_far(self, over: asyncio.Event) -> None:
        """The clients of the half behind the link, one for each way of delivery: requests that
        wait for a quorum keep a client from asking more."""
        async with contextlib.AsyncExitStack() as stack:
            loads = []
            for delivery in ("durable", "fast"):
                client = swarm.connect(self.servers.far, self.local.name, shm=False)
                mesh = await stack.enter_async_context(client)
                about = self.workload, FAR_RATE, BUDGET, delivery, self.watch.began
                loads.append(Load(mesh, *about))
                self.loads[f"far, {delivery}"] = loads[-1]
            self.watch.follow(mesh)
            await self._ask(loads, over)

    async def ask_near(self, over: asyncio.Event) -> None:
        async with swarm.connect(self.servers.near, self.local.name) as mesh:
            self.watch.follow(mesh)
            for inputs in self.workload.inputs[:WARM_UP]:
                await mesh.infer(self.model, inputs, 5.0)
            load = Load(mesh, self.workload, self.plan.rate, BUDGET, began=self.watch.began)
            self.loads["near"] = load
            await self._ask([load], over)

    @staticmethod
    async def _ask(loads: Sequence[Load], over: asyncio.Event) -> None:
        running = [asyncio.create_task(load.run()) for load in loads]
        try:
            await over.wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*(load.ended() for load in loads))


async def play(plan: CutPlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `Unavailable`, `InvalidArgument`."""
    if plan.nodes <= 2 * FAR:
        raise InvalidArgument(f"--nodes {plan.nodes}: {FAR} stand behind the link, and more here")
    workload = await asyncio.to_thread(workload_of, STAGES)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="swarm-auto-"))) / "model"
        await asyncio.to_thread(write_dir, folder, workload.model.manifest, workload.model.files)
        servers = await stack.enter_async_context(cut_cluster())
        local = await stack.enter_async_context(mesh_of(url=servers.near))
        await local.keep(folder)
        halves = Halves(plan, local, servers, workload, Watch())
        await halves.start()
        watch = halves.watch
        over = asyncio.Event()
        near = asyncio.create_task(halves.ask_near(over))
        try:
            with behind(servers.link.node_namespace, halves.ask_far):
                await asyncio.sleep(QUIET)
                before = max((each.plan for each in watch.told), default=0)
                progress(f"the network is cut for {plan.cut:g} s …")
                cut = time.monotonic() - watch.began
                servers.link.cut()
                try:
                    await asyncio.sleep(plan.cut)
                finally:
                    servers.link.heal()
                healed = time.monotonic() - watch.began
                progress(f"healed: {plan.watched:g} s …")
                await asyncio.sleep(plan.watched)
        finally:
            over.set()
            await near
    return document_of(plan, watch, halves.loads, before, cut, healed)


def document_of(
    plan: CutPlan,
    watch: Watch,
    loads: Mapping[str, Load],
    before: int,
    cut: float,
    healed: float,
) -> dict[str, Any]:
    """The figures of a run. before: the number of the plan in force. cut, healed: when that
    happened."""
    first, apart = agreement(watch.told, plan.nodes, healed)
    in_force = max((each.number for each in watch.written if each.at < healed), default=before)
    moved = slots_of(watch.told, healed, in_force)

    def written(begin: float, end: float) -> list[dict[str, Any]]:
        return [
            {"at_s": round(w.at - begin, 2), "plan": w.number, "by": w.proposer, "why": w.reason}
            for w in watch.written
            if begin <= w.at < end
        ]

    return {
        "nodes": plan.nodes,
        "far_nodes": FAR,
        "cut_s": round(healed - cut, 2),
        "watched_s": plan.watched,
        "plan_before": before,
        "plans_while_cut": written(cut, healed),
        "plans_after_heal": written(healed, float("inf")),
        "one_plan_after_s": None if first is None else round(first, 2),
        "plans_apart_s": round(apart, 2),
        "moves_after_heal": {node: len(row) - 1 for node, row in sorted(moved.items())},
        "slots_after_heal": dict(sorted(moved.items())),
        "to_and_fro": sorted(node for node, row in moved.items() if went_back(row)),
        "requests": {name: requests_of(load, cut, healed) for name, load in loads.items()},
    }


def misses(document: Mapping[str, Any]) -> list[str]:
    """Sentences of what must not be."""
    reasons = []
    times = [plan["at_s"] for plan in document["plans_after_heal"]]
    for before, after in pairwise(times):
        if after - before < MOVE_EVERY - EARLY:
            reasons.append(f"plans fight: {after - before:.1f} s between two behind the heal")
    if document["one_plan_after_s"] is None:
        reasons.append("the nodes never knew one plan again")
    if document["to_and_fro"]:
        reasons.append(f"nodes went to and fro: {', '.join(document['to_and_fro'])}")
    for name, each in document["requests"].items():
        if each["lost"] or each["wrong"]:
            reasons.append(f"{name}: {each['lost']} lost, {each['wrong']} wrong")
        if each["first_answer_after_heal_s"] is None:
            reasons.append(f"{name}: nothing was answered behind the heal")
    return reasons


CUT = Benchmark("auto", play, show, misses=misses)
