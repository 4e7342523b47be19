"""CPU time and memory of a client and of everything that it started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from nodes.bench.peers.processes import descendants


@dataclass(frozen=True)
class Usage:
    """One reading: CPU seconds per process, resident memory of all of them in bytes.

    ``rss`` counts a page once for each process that maps it; ``pss`` shares it out among them
    (Linux; ``None`` elsewhere).
    """

    cpu: dict[int, float]
    rss: int
    pss: int | None

    def cpu_since(self, before: Usage) -> float:
        """CPU seconds spent between two readings by the processes alive at the second one."""
        return sum(spent - before.cpu.get(pid, 0.0) for pid, spent in self.cpu.items())


def read_usage(extra: Iterable[int] = ()) -> Usage:
    """Read this process, its descendants and ``extra`` process ids."""
    own = os.getpid()
    processes = {process.pid: process for process in descendants(own)}
    processes[own] = psutil.Process(own)
    for pid in extra:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes[pid] = psutil.Process(pid)
    cpu: dict[int, float] = {}
    # CPU first: adding up the memory maps costs CPU time of its own.
    for pid, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            times = process.cpu_times()
            cpu[pid] = times.user + times.system
    rss = 0
    pss: int | None = 0
    for process in processes.values():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            rss += process.memory_info().rss
            try:
                shared = getattr(process.memory_full_info(), "pss", None)
            except psutil.AccessDenied:
                shared = None
            pss = None if pss is None or shared is None else pss + shared
    return Usage(cpu, rss, pss)
