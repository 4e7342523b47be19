"""A mesh as `swarm up` makes it, a client beside it, and the faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import swarm
from bench.faults.chaos.figures import request_figures
from bench.faults.chaos.load import ask_steadily
from bench.faults.chaos.schedule import Fault, rule, schedule
from bench.faults.chaos.workload import STAGES, Workload, make_workload
from bench.report.machine import machine
from nodes.up.mesh import LocalMesh, local_mesh
from shards.manifest import write_dir

SERVER = "server"
WARM_UP = 20  # requests before the load: the client learns where the nodes are


@dataclass(frozen=True)
class ChaosPlan:
    """seed: of the faults. rate: requests a second. every: seconds between two faults. seconds: of
    load. budget: seconds of each request. nodes_per_stage: beside one fallback. model: `digits` or
    an ONNX file. server: whether the embedded server is a victim too."""

    seed: int = 1
    rate: float = 60.0
    every: float = 1.5
    seconds: float = 60.0
    budget: float = 5.0
    nodes_per_stage: int = 1
    model: str = "digits"
    server: bool = False

    def roles(self) -> list[str]:
        """The roles of the node processes."""
        stages = range(1, STAGES + 1)
        return [f"shard-{k}" for k in stages for _ in range(self.nodes_per_stage)] + ["fallback"]


async def play(plan: ChaosPlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `InvalidArgument`, `Unavailable`."""
    workload = await asyncio.to_thread(make_workload, plan.model, plan.seed)
    victims = [*plan.roles(), *([SERVER] if plan.server else [])]
    faults = schedule(plan.seed, plan.seconds, plan.every, len(victims))
    async with contextlib.AsyncExitStack() as stack:
        # The folder outlives the mesh, which puts the model back from there.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="swarm-chaos-"))) / "model"
        await asyncio.to_thread(write_dir, folder, workload.model.manifest, workload.model.files)
        local = await stack.enter_async_context(local_mesh(name="chaos"))
        await local.keep(folder)
        for role in plan.roles():
            local.start(role, workload.model.manifest.model)
        await local.ready()
        progress(f"{len(faults)} faults in {plan.seconds:g} s …")
        async with swarm.connect(local.url, local.name) as mesh:
            await _warm_up(mesh, workload)
            began = time.monotonic()
            fallen = asyncio.create_task(_fall(local, faults, victims, began))
            requests = await ask_steadily(
                mesh, workload, plan.rate, plan.seconds, plan.budget, began
            )
            played = await fallen
        restarts = sum(node.restarts for node in local.supervisor.nodes)
    return {
        "v": 1,
        "bench": "chaos",
        "machine": machine(),
        "rule": rule(plan.every, victims),
        "seed": plan.seed,
        "model": plan.model if plan.model == "digits" else os.path.basename(plan.model),
        "nodes_per_stage": plan.nodes_per_stage,
        "requests_per_s": plan.rate,
        "seconds": plan.seconds,
        "budget_ms": plan.budget * 1e3,
        "faults_drawn": len(faults),
        "faults_fallen": sum(fault["fell"] for fault in played),
        "restarts": restarts,
        **request_figures(requests, plan.seconds, plan.budget),
        "faults": played,
    }


async def _warm_up(mesh: swarm.Mesh, workload: Workload) -> None:
    for inputs in workload.inputs[:WARM_UP]:
        await mesh.infer(workload.model.manifest.model, inputs, 5.0)


async def _fall(
    local: LocalMesh, faults: Sequence[Fault], victims: Sequence[str], began: float
) -> list[dict[str, Any]]:
    """Send each fault's signal when its moment has come; no process is left stopped."""
    played = []
    loop = asyncio.get_running_loop()
    stopped: list[tuple[asyncio.TimerHandle, int]] = []
    try:
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            pid = _pid_of(local, fault.victim)
            fell = pid > 0 and _signal(pid, fault.kind.number)
            if fell and fault.stopped:
                timer = loop.call_later(fault.stopped, _signal, pid, signal.SIGCONT)
                stopped.append((timer, pid))
            played.append(
                {
                    "at_s": round(fault.at, 3),
                    "signal": str(fault.kind),
                    "victim": victims[fault.victim],
                    "pid": pid,
                    "stopped_s": round(fault.stopped, 3),
                    "fell": fell,
                }
            )
    finally:
        for timer, pid in stopped:
            timer.cancel()
            _signal(pid, signal.SIGCONT)
    return played


def _pid_of(local: LocalMesh, victim: int) -> int:
    """The process that lives in the victim's place now; 0 where none does."""
    nodes = local.supervisor.nodes
    if victim < len(nodes):
        return nodes[victim].pid if nodes[victim].alive else 0
    server = local.server
    return server.pid if server is not None and server.alive else 0


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a child; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
