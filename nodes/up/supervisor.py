"""Node processes of a local mesh: started, watched, started again after a death, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nodes.event_loop import SUPERVISOR
from nodes.low_priority import MISSED
from nodes.up.restarts import LONGEST_PAUSE, Past, after_death, is_missed

log = logging.getLogger("swarm.up")

STOP_TIMEOUT = 10.0  # seconds to drain before SIGKILL
CHECK_EVERY = 1.0  # seconds between checks, beside the kernel's word that a process ended
# Seconds between checks while a process waits for its restart, or where the kernel does not tell.
POLL_EVERY = 0.1


@dataclass
class NodeProcess:
    """One role's process, and its successors.

    arguments: of `swarm-node`. restarts: how often it was started again. was_ready: whether the
    present process has ever said that it is ready. past: the deaths so far. restart_at: when it
    starts again (`clock()`, seconds), 0 while no restart waits. wanted: whether the supervisor
    starts it again after its death. missed: whether nobody else does its work, so
    that its next start has normal priority. program: the module that runs.
    """

    role: str
    arguments: list[str]
    log_path: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    was_ready: bool = False
    past: Past = field(default_factory=Past)
    started: float = 0.0
    restart_at: float = 0.0
    wanted: bool = True
    missed: bool = False
    clock: Callable[[], float] = time.monotonic
    program: str = "nodes.cli.node"

    @property
    def pid(self) -> int:
        """Process id, 0 before the first start."""
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether its process runs, stopped or not."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start a process; its standard error is appended to the log. Raises `OSError`."""
        environment = {"PYTHONUNBUFFERED": "1", SUPERVISOR: str(os.getpid())}
        if self.missed:
            environment[MISSED] = "1"
        handle = None
        if self.log_path is not None:
            handle = self.log_path.open("ab")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=handle or subprocess.DEVNULL,
                # Ctrl-C is for the supervisor, which ends the nodes in order.
                start_new_session=True,
                # The child itself sees to it that it ends with this process: a `preexec_fn` rules
                # out vfork, and a fork stops the event loop (measured: 10-25 ms).
                env=os.environ | environment,
            )
        finally:
            if handle is not None:
                handle.close()
        self.started = self.clock()
        self.was_ready = False

    def died(self, now: float) -> float:
        """Plan the restart of a process that was found dead; returns seconds until then."""
        lived = now - self.started
        self.past, pause = after_death(self.past, now, self.was_ready, lived)
        self.restart_at = now + pause
        return pause

    def restart(self) -> None:
        """Start the successor of a process that died."""
        self.restart_at = 0.0
        self.restarts += 1
        self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""
        if self.alive and self.process is not None:
            self.process.send_signal(number)


@dataclass
class Supervisor:
    """`run()` watches; `stop()` drains all nodes. on_exit(node, code) is called at each death."""

    nodes: list[NodeProcess] = field(default_factory=list)
    on_exit: Callable[[NodeProcess, int], None] = lambda node, code: None
    clock: Callable[[], float] = time.monotonic

    def add(self, node: NodeProcess) -> NodeProcess:
        """Start a node and watch it. Raises `OSError`."""
        node.start()
        self.nodes.append(node)
        return node

    async def run(self) -> None:
        """Restart the nodes that die, until cancelled."""
        while True:
            now = self.clock()
            for node in self.nodes:
                if node.alive or not node.wanted:
                    continue
                if node.restart_at == 0.0:
                    code = node.process.returncode if node.process is not None else 0
                    self.on_exit(node, code or 0)
                    text = "%s ended with code %s; it starts again in %.1f s"
                    log.warning(text, node.role, code, node.died(now))
                if now >= node.restart_at:
                    node.missed = self._is_missed(node)
                    try:
                        node.restart()
                    except OSError as error:  # no memory, no room: the other nodes go on
                        log.warning("%s cannot be started: %s", node.role, error)
                        node.restart_at = now + LONGEST_PAUSE
            living = [node.pid for node in self.nodes if node.alive]
            all_alive = len(living) == len(self.nodes)
            await one_ends(living, CHECK_EVERY if all_alive else POLL_EVERY)

    def _is_missed(self, node: NodeProcess) -> bool:
        wanted = [other.role for other in self.nodes if other.wanted]
        ready = [other.role for other in self.nodes if other.alive and other.was_ready]
        return is_missed(node.role, wanted, ready)

    async def stop(self, timeout: float = STOP_TIMEOUT) -> list[str]:
        """Drain all nodes; returns the roles that had to be killed. Leaves no process."""
        for node in self.nodes:
            node.wanted = False
            node.signal(signal.SIGTERM)
            # A stopped process (SIGSTOP) takes no SIGTERM until it goes on.
            node.signal(signal.SIGCONT)
        deadline = time.monotonic() + timeout
        while living := [node.pid for node in self.nodes if node.alive]:
            if (left := deadline - time.monotonic()) <= 0:
                break
            await one_ends(living, left)
        killed = []
        for node in self.nodes:
            if node.alive:
                killed.append(node.role)
                node.signal(signal.SIGKILL)
            if node.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.process.wait(2.0)
        return killed


async def one_ends(pids: Iterable[int], seconds: float) -> None:
    """Wait until one of these child processes ends, or for `seconds`.

    The kernel tells by pidfds (Linux 5.3); without them this waits for `POLL_EVERY` at the most.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    with contextlib.ExitStack() as undo:
        try:
            for pid in pids:
                file = os.pidfd_open(pid)
                undo.callback(os.close, file)
                loop.add_reader(file, ended.set)
                undo.callback(loop.remove_reader, file)
        except (AttributeError, OSError):  # a process may be gone by now
            seconds = min(seconds, POLL_EVERY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
