"""Closed-loop load on the mesh or on a floor: requests, concurrency, and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from nodes.bench.lineup import WrongAnswer, check
from nodes.bench.peers.contenders.swarm_mesh import Swarm

START_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice: latencies in seconds, ends (ascending) of the requests on one clock in seconds,
    in_flight at a time, cpu in seconds of all processes involved."""

    latencies: list[float]
    ends: list[float]
    in_flight: int
    cpu: float
    refused: int = 0

    @property
    def per_s(self) -> float:
        """Requests a second while `in_flight` were under way: neither the first ones, which fill
        the pipeline, nor the last ones, behind which it empties, say what it yields."""
        steady = self.ends[self.in_flight - 1 : len(self.ends) - self.in_flight]
        return (len(steady) - 1) / (steady[-1] - steady[0])


class Load(Protocol):
    """Something that answers requests."""

    def run(self, requests: int, concurrency: int) -> Sample:
        """`requests`, three times `concurrency` at least, with that many under way. Raises
        `WrongAnswer`."""
        ...


class MeshLoad:
    """Requests to the mesh: the client is this process, CPU is counted over the whole tree."""

    def __init__(self, mesh: Swarm) -> None:
        self._mesh = mesh

    def run(self, requests: int, concurrency: int) -> Sample:
        mesh = self._mesh
        mesh.latencies.clear()
        mesh.ends.clear()
        refused, cpu = mesh.refused, tree_cpu()
        outputs = mesh.concurrent(mesh.workload.input, concurrency, requests)
        cpu = tree_cpu() - cpu
        if len(outputs) != requests:
            raise WrongAnswer(f"{len(outputs)} answers to {requests} requests")
        for output in outputs:
            check(mesh.workload, output)
        refused = mesh.refused - refused
        return Sample(list(mesh.latencies), list(mesh.ends), concurrency, cpu, refused)


class WorkerLoad:
    """Processes without any mesh; `concurrency` above their number waits in vain."""

    def __init__(self, directory: Path, mode: str, threads: int, processes: int) -> None:
        command = [sys.executable, "-m", "nodes.bench.floor_worker", str(directory), mode]
        self._workers = [
            subprocess.Popen(
                [*command, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        try:
            for worker in self._workers:
                self._line(worker)
        except BaseException:
            self.stop()
            raise

    def run(self, requests: int, concurrency: int) -> Sample:
        active = self._workers[: max(1, min(concurrency, len(self._workers)))]
        share, rest = divmod(requests, len(active))
        for index, worker in enumerate(active):
            assert worker.stdin is not None
            worker.stdin.write(f"{share + (index < rest)}\n")
            worker.stdin.flush()
        reports: list[dict[str, Any]] = [json.loads(self._line(worker)) for worker in active]
        wrong = [report["wrong"] for report in reports if report["wrong"]]
        if wrong:
            raise WrongAnswer(f"wrong output of a floor: {wrong[0]}")
        return Sample(
            [latency for report in reports for latency in report["latencies"]],
            sorted(end for report in reports for end in report["ends"]),
            len(active),
            sum(report["cpu"] for report in reports),
        )

    @staticmethod
    def _line(worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a floor's process ended with {worker.wait(5)}")
        return line

    def stop(self) -> None:
        """End the processes; they end with their input."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(5)
            if worker.stdout is not None:
                worker.stdout.close()


def tree_cpu() -> float:
    """CPU seconds of this process and its living descendants so far."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        total += times.user + times.system
    return total


def enough(load: Load, concurrency: int, seconds: float, least: int = 12) -> int:
    """How many requests take about `seconds`: asked of the load itself, by a short try."""
    least = max(least, 3 * concurrency)
    sample = load.run(least, concurrency)
    return max(least, 2 * concurrency + int(sample.per_s * seconds))
