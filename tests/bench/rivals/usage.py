"""CPU time and memory of this process and of everything that it started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.rivals.processes import descendants


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


def read_usage() -> Usage:
    """Read this process and its descendants."""
    # CPU first: adding up the memory maps costs CPU time of its own.
    processes = _own_tree()
    cpu = _cpu_seconds(processes)
    rss = 0
    pss: int | None = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            rss += process.memory_info().rss
            try:
                shared = getattr(process.memory_full_info(), "pss", None)
            except psutil.AccessDenied:
                shared = None
            pss = None if pss is None or shared is None else pss + shared
    return Usage(cpu, rss, pss)


def tree_cpu() -> float:
    """CPU seconds of this process and its living descendants so far."""
    return sum(_cpu_seconds(_own_tree()).values())


def cpu_with(family: Sequence[psutil.Process]) -> float:
    """CPU seconds so far of this process and of those of the family that live."""
    return sum(_cpu_seconds([psutil.Process(), *family]).values())


def _own_tree() -> list[psutil.Process]:
    own = os.getpid()
    return [psutil.Process(own), *descendants(own)]


def _cpu_seconds(processes: Sequence[psutil.Process]) -> dict[int, float]:
    """User and system time by process id; a process that has ended meanwhile is left out."""
    seconds: dict[int, float] = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
    return seconds
