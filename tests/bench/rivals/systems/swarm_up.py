"""The mesh as a user runs it: the command ``swarm up`` and the client ``swarm.connect``.

The command gets the whole model as a file and cuts it itself. It starts its own server, a node for
each stage and a fallback node. The client knows the server's address and the mesh's name from the
command's ready line, and asks by ``infer``. The cuts are named, so that the stages are those of the
other contenders; where a cut has several tensors, ``--stages`` leaves the cuts to the command.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.rivals.contract import REQUEST_TIMEOUT, START_TIMEOUT, Unavailable
from bench.rivals.processes import Processes
from bench.rivals.systems.mesh_client import FAST, MODEL, MeshContender
from bench.rivals.workload import Workload

COMMAND = "up"
STOP_TIMEOUT = 15.0
"""Seconds in which the command must have drained its nodes and ended."""
SECONDS_AT_WORK = 2.0
"""Seconds of requests before anything is measured: a client learns where the nodes are only after
it has asked often for a second, and the client that is measured is one at work."""


def start_up(
    processes: Processes, *arguments: str, timeout: float = START_TIMEOUT
) -> tuple[int, dict[str, Any]]:
    """Run `swarm up`; returns its process id and its ready line. Raises `RuntimeError` where it
    ends before, `TimeoutError`."""
    command = [sys.executable, "-m", "nodes.cli.main", "up", "--json", *arguments]
    pid = processes.spawn(COMMAND, command)
    found: dict[str, Any] = {}

    def is_ready() -> bool:
        log = (processes.scratch / f"{COMMAND}.log").read_text(errors="replace")
        for line in log.splitlines():
            if line.startswith('{"event": "ready"'):
                found.update(json.loads(line))
        return bool(found)

    processes.wait(is_ready, timeout, COMMAND)
    return pid, found


class SwarmUp(MeshContender):
    """Durable delivery, as `Mesh.infer` has it unless told otherwise."""

    packages = (*MeshContender.packages, "onnx")
    use_uvloop = False  # the example in the project's README runs by `asyncio.run`

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._ready_line: dict[str, Any] = {}

    def check(self) -> None:
        super().check()
        if not self.workload.whole.is_file():
            raise Unavailable(f"swarm up needs the whole model: no {self.workload.whole}")

    def launch(self) -> None:
        cuts = self.workload.cuts
        how = ["--cuts", ",".join(cuts)] if cuts else ["--stages", str(self.workload.stages)]
        arguments = ["--nats", "", "--model", str(self.workload.whole), "--name", MODEL, *how]
        self._ready_line = start_up(self._processes, *arguments)[1]

    async def serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        import swarm

        async with swarm.connect(self._ready_line["nats"], self._ready_line["mesh"]) as mesh:
            self._mesh = mesh
            await self.open()
            ready()
            await stopping.wait()

    async def open(self) -> None:
        until = time.monotonic() + SECONDS_AT_WORK
        while time.monotonic() < until:
            await self._mesh.infer(
                MODEL, self.workload.input, budget=REQUEST_TIMEOUT, delivery=self.delivery
            )

    @property
    def restarts(self) -> int:
        return sum(not psutil.pid_exists(node["pid"]) for node in self._ready_line["nodes"])

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._processes.stop(STOP_TIMEOUT)


class SwarmUpFast(SwarmUp):
    """The fast mode: ``infer(…, delivery="fast")``."""

    delivery = FAST
