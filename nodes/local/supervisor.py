"""Node processes of a local mesh: started, watched, restarted with backoff, ended."""

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

from nodes.life.process import SUPERVISOR

log = logging.getLogger("swarm.up")

BACKOFF = (0.2, 10.0)  # seconds: first and longest pause before a restart
STABLE_AFTER = 10.0  # seconds of life after which the backoff starts anew
STOP_TIMEOUT = 10.0  # seconds to drain before SIGKILL
# Seconds between looks: while something is to be started again, or the kernel does not tell who
# ended; and else.
POLL, LOOK = 0.1, 1.0


@dataclass
class NodeProcess:
    """One role's process, and its successors."""

    role: str
    arguments: list[str]
    log_path: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    failures: int = 0
    started: float = 0.0
    restart_at: float = 0.0
    wanted: bool = True

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        sink = subprocess.DEVNULL
        handle = None
        if self.log_path is not None:
            handle = self.log_path.open("ab")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nodes.cli.node", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=handle or subprocess.DEVNULL,
                # Ctrl-C is for the supervisor, which ends the nodes in order.
                start_new_session=True,
                # The child itself sees to it that it ends with us: a `preexec_fn` rules out
                # vfork, and a fork stops this process's event loop for 10-25 ms.
                env=os.environ | {"PYTHONUNBUFFERED": "1", SUPERVISOR: str(os.getpid())},
            )
        finally:
            if handle is not None:
                handle.close()
        self.started = time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        if self.alive and self.process is not None:
            self.process.send_signal(number)


@dataclass
class Supervisor:
    """`run()` watches; `stop()` drains all. on_exit(node, code) is called at each death."""

    nodes: list[NodeProcess] = field(default_factory=list)
    on_exit: Callable[[NodeProcess, int], None] = lambda node, code: None

    def add(self, node: NodeProcess) -> NodeProcess:
        self.nodes.append(node)
        node.start()
        return node

    async def run(self) -> None:
        """Restart what dies, until cancelled."""
        while True:
            now = time.monotonic()
            for node in self.nodes:
                if node.alive or not node.wanted:
                    continue
                if node.restart_at == 0.0:
                    code = node.process.returncode if node.process is not None else 0
                    self.on_exit(node, code or 0)
                    lived = now - node.started
                    node.failures = 1 if lived > STABLE_AFTER else node.failures + 1
                    pause = min(BACKOFF[1], BACKOFF[0] * 2 ** min(node.failures - 1, 10))
                    node.restart_at = now + pause
                    log.warning(
                        "%s ended with code %s; it starts again in %.1f s", node.role, code, pause
                    )
                elif now >= node.restart_at:
                    node.restart_at = 0.0
                    node.restarts += 1
                    node.start()
            living = [node.pid for node in self.nodes if node.alive]
            await one_ends(living, LOOK if len(living) == len(self.nodes) else POLL)

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
    """Wait until one of these child processes ends, or for `seconds`. Without pidfds (Linux 5.3)
    no longer than `POLL`; asked for ten times a second, they are 2.5 ms of CPU a second."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    with contextlib.ExitStack() as undo:
        try:
            for pid in pids:
                file = os.pidfd_open(pid)
                undo.callback(os.close, file)
                loop.add_reader(file, ended.set)
                undo.callback(loop.remove_reader, file)
        except (AttributeError, OSError):  # one may be gone by now
            seconds = min(seconds, POLL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
