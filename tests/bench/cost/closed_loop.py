"""Closed-loop load on the mesh or on a floor: a number of requests, so many at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.rivals.processes import cpu_with
from bench.rivals.systems.mesh_client import MeshContender
from bench.rivals.workload import WrongAnswer

END_TIMEOUT = 5.0  # seconds
LINE_TIMEOUT = 300.0  # seconds until a floor's process must be ready, or have run a slice
LEAST_REQUESTS = 12  # in a slice


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice. latencies: seconds. ends: when each request ended, ascending, in seconds of one
    clock. in_flight: requests at a time. cpu: seconds of all processes involved. refused: requests
    that a full lane refused and that were sent again."""

    latencies: list[float]
    ends: list[float]
    in_flight: int
    cpu: float
    refused: int = 0

    @property
    def per_s(self) -> float:
        """Requests a second while `in_flight` were under way: without the first requests, which
        fill the pipeline, and the last ones, which leave it empty."""
        steady = self.ends[self.in_flight - 1 : len(self.ends) - self.in_flight]
        return (len(steady) - 1) / (steady[-1] - steady[0])


class Load(Protocol):
    """Something that answers requests."""

    def run(self, requests: int, concurrency: int) -> Sample:
        """`requests`, three times `concurrency` at least, with that many under way. Raises
        `WrongAnswer`."""
        ...


class MeshLoad:
    """Requests to the mesh: the client is this process, whose CPU is counted with the mesh's."""

    def __init__(self, mesh: MeshContender) -> None:
        self._mesh = mesh

    def run(self, requests: int, concurrency: int) -> Sample:
        mesh = self._mesh
        log = mesh.start_log()
        cpu = cpu_with(mesh.family)
        outputs = mesh.concurrent(mesh.workload.input, concurrency, requests)
        cpu = cpu_with(mesh.family) - cpu
        if len(outputs) != requests:
            raise WrongAnswer(f"{len(outputs)} answers to {requests} requests")
        for output in outputs:
            mesh.workload.check(output)
        return Sample(log.latencies, log.ends, concurrency, cpu, log.refused)


class WorkerLoad:
    """Processes without any mesh, each with one request at a time: a `concurrency` above their
    number changes nothing.

    directory: a pipeline's folder. mode: `stages` or `whole`, see `floor_process`.
    """

    def __init__(self, directory: Path, mode: str, threads: int, processes: int) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.cost.floor_process",
            str(directory),
            mode,
        ]
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
        """The next line of a process, which is killed when the line does not come in time."""
        assert worker.stdout is not None
        killing = threading.Timer(LINE_TIMEOUT, worker.kill)
        killing.start()
        try:
            line = worker.stdout.readline()
        finally:
            killing.cancel()
        if not line:
            raise RuntimeError(f"a floor's process ended with {worker.wait(END_TIMEOUT)}")
        return line

    def stop(self) -> None:
        """Close the processes' input, which ends them; kill those that live on."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(END_TIMEOUT)
            if worker.stdout is not None:
                worker.stdout.close()


def requests_for(load: Load, concurrency: int, seconds: float) -> int:
    """How many requests take about `seconds`, by a short run of the load itself."""
    least = max(LEAST_REQUESTS, 3 * concurrency)
    sample = load.run(least, concurrency)
    return max(least, 2 * concurrency + int(sample.per_s * seconds))
