"""Owning processes: each process started here has a log, a deadline to be ready, and an end.

On Linux a client becomes the *subreaper* of its descendants. A daemon whose parent exits is then
adopted by the client, so the daemon is counted while it runs and found when everything is taken
down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[3]
"""Belongs on ``PYTHONPATH`` of clients and stages: they need this package, not its dependencies."""

ONE_THREAD_EACH = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""The environment of a client and so of its stages: one thread each, nothing but the loopback."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt orphaned descendants (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wait_until(ready: Callable[[], bool], timeout: float, name: str) -> None:
    """Poll ``ready`` every 5 ms; ``TimeoutError`` with ``name`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} took more than {timeout:.0f} s")
        time.sleep(0.005)


def accepts(port: int) -> bool:
    """Whether something listens on this loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


class Processes:
    """The processes of one contender: started, awaited and ended together."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []

    def spawn(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start ``command``; its output goes to ``<name>.log`` in the scratch folder. Returns its
        process id."""
        with (self.scratch / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.scratch,
                env={**os.environ, **(environment or {})},
                preexec_fn=die_with_parent,
            )
        self._children.append((name, child))
        return child.pid

    @property
    def newest(self) -> int:
        """The process id of the last one that was started."""
        return self._children[-1][1].pid

    def spawn_module(
        self,
        name: str,
        module: str,
        *arguments: str,
        timeout: float = 30.0,
    ) -> str:
        """Start ``python -m module <ready file> *arguments`` and wait for the ready file.

        Returns what the process wrote there: the address where it listens, for example.
        """
        ready = self.scratch / f"{name}.ready"
        command = [sys.executable, "-m", module, str(ready), *arguments]
        self.spawn(name, command)
        self.wait(ready.exists, timeout, name)
        return ready.read_text()

    def wait(self, ready: Callable[[], bool], timeout: float, name: str) -> None:
        """Wait until ``ready``; fail at once, with its last words, when a process has ended."""

        def check() -> bool:
            for own, child in self._children:
                if child.poll() is not None:
                    raise RuntimeError(
                        f"{own} ended with {child.returncode}: {self.last_words(own)}"
                    )
            return ready()

        wait_until(check, timeout, name)

    def last_words(self, name: str, limit: int = 600) -> str:
        """The end of a process's log."""
        log = self.scratch / f"{name}.log"
        return log.read_text(errors="replace").strip()[-limit:] if log.exists() else ""

    def stop(self, grace: float = 5.0) -> None:
        """Ask all to end, wait, then kill the rest of them and of their descendants."""
        trees = [descendants(child.pid) for _, child in self._children]
        for _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace
        for _, child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        kill([process for tree in trees for process in tree])
        for _, child in self._children:
            child.kill()
            child.wait(5)
        self._children.clear()


def announce(ready: str, message: str = "ready") -> None:
    """Write the ready file of :meth:`Processes.spawn_module`, complete or not at all."""
    temporary = f"{ready}.part"
    Path(temporary).write_text(message)
    os.replace(temporary, ready)


def descendants(pid: int) -> list[psutil.Process]:
    """All living descendants of a process."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill these processes and wait for their end."""
    doomed = list(processes)
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=5)


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
