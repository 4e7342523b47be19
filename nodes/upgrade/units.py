"""The nodes of a device as processes of their own, which outlive their updater.

Each process holds a lock of the kernel on a file of its own, from before it is started until it
ends, whoever started it: so whether it runs is never a guess, and none is started twice. The file
names its release and its process id.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nodes.health.endpoint import asked
from nodes.upgrade.device import RunningRelease
from nodes.upgrade.environments import Environments
from swarm.errors import Unavailable

log = logging.getLogger("swarm.upgrade")

DRAIN = 15.0  # seconds from SIGTERM to SIGKILL
LONGEST_LOG = 4 << 20  # bytes of a node's log, above which it begins anew at a start
_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
MAIN, TRIAL = "main", "trial"
# The process names itself in the file that it holds: whoever starts it may die meanwhile.
_LAUNCH = 'echo "$$" >> "$1"; shift; exec "$@"'


class Units(Protocol):
    """Main and trial of one device. Methods raise `Unavailable` and `OSError` for what could not be
    done; it is tried again."""

    async def seen(self, which: str) -> RunningRelease:
        """Main, or trial, as it runs now."""

    async def start_main(self) -> None:
        """Start what does not run of main, by `current`."""

    async def restart_main(self) -> None:
        """End what runs another release than `current` names, and start it by `current`."""

    async def start_trial(self, version: str) -> None:
        """Run trial from this release; another trial ends."""

    async def stop_trial(self) -> None:
        """End trial: its nodes drain."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a process says of itself: 0 where it has not said its id yet."""

    version: str
    pid: int


class ProcessUnits:
    """See `Units`. nodes: the arguments of each node. environment: of all of them."""

    def __init__(self, environments: Environments, nodes: Sequence[Sequence[str]]) -> None:
        self._environments = environments
        self._nodes = [list(arguments) for arguments in nodes]
        self._folder = environments.home / "run"
        self._children: list[subprocess.Popen[bytes]] = []

    async def seen(self, which: str) -> RunningRelease:
        """See `Units`."""
        self._reap()
        held = [self._held(self._file(which, n)) for n in range(len(self._nodes))]
        running = [each for each in held if each is not None]
        versions = {each.version for each in running}
        if len(running) < len(held):
            return RunningRelease(version=versions.pop() if len(versions) == 1 else "")
        ready = await asyncio.gather(
            *(
                asyncio.to_thread(asked, self._health(which, number), "readyz")
                for number in range(len(held))
            )
        )
        version = versions.pop() if len(versions) == 1 else ""
        return RunningRelease(True, all(verdict.ok for verdict in ready), version)

    async def start_main(self) -> None:
        """See `Units`."""
        for number in range(len(self._nodes)):
            if self._held(self._file(MAIN, number)) is None:
                self._start(MAIN, number, self._environments.current())

    async def restart_main(self) -> None:
        """See `Units`."""
        wanted = self._environments.current()
        for number in range(len(self._nodes)):
            held = self._held(self._file(MAIN, number))
            if held is None or held.version != wanted:
                await self._end(MAIN, number)
                self._start(MAIN, number, wanted)

    async def start_trial(self, version: str) -> None:
        """See `Units`."""
        for number in range(len(self._nodes)):
            held = self._held(self._file(TRIAL, number))
            if held is None or held.version != version:
                await self._end(TRIAL, number)
                self._start(TRIAL, number, version)

    async def stop_trial(self) -> None:
        """See `Units`."""
        ends = (self._end(TRIAL, number) for number in range(len(self._nodes)))
        await asyncio.gather(*ends)

    async def stop(self) -> None:
        """End all of them."""
        both = [(which, n) for which in (MAIN, TRIAL) for n in range(len(self._nodes))]
        await asyncio.gather(*(self._end(which, number) for which, number in both))
        self._reap()

    # --- one process ------------------------------------------------------------------------

    def _file(self, which: str, number: int) -> Path:
        return self._folder / f"{which}-{number}"

    def _health(self, which: str, number: int) -> Path:
        return self._folder / f"{which}-{number}.health"

    def _held(self, file: Path) -> _Held | None:
        """None where nobody holds the file."""
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                words = os.read(descriptor, 400).decode(errors="replace").split()
        finally:
            os.close(descriptor)
        version = words[0] if words else ""
        return _Held(version, int(words[1]) if len(words) > 1 and words[1].isdigit() else 0)

    def _start(self, which: str, number: int, version: str) -> None:
        program = self._environments.program(version)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, log_file = self._file(which, number), self._folder / f"{which}-{number}.log"
        if log_file.exists() and log_file.stat().st_size > LONGEST_LOG:
            log_file.unlink()
        state = self._environments.home / "state" / f"{which}-{number}"
        command = [str(program), *self._nodes[number]]
        command += ["--health", str(self._health(which, number))]
        if which == TRIAL:
            command += ["--metrics-port", ""]  # main has it
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(f"{file.name} runs already") from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{version}\n".encode())
            with log_file.open("ab") as output:
                child = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, "sh", str(file), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    start_new_session=True,  # it outlives its updater
                    pass_fds=(descriptor,),
                    env=_environment(state),
                )
        finally:
            os.close(descriptor)
        self._children.append(child)
        started = "%s of release %s started as process %d, its log is %s"
        log.info(started, file.name, version, child.pid, log_file)

    async def _end(self, which: str, number: int) -> None:
        """Returns when nobody holds the file any more. Raises `Unavailable`."""
        file = self._file(which, number)
        deadline = asyncio.get_running_loop().time() + DRAIN
        sent, pid = 0, 0
        while (held := self._held(file)) is not None:
            now = asyncio.get_running_loop().time()
            if held.pid and held.pid != pid:
                pid, sent = held.pid, signal.SIGTERM
                _signal(pid, signal.SIGTERM)
            elif pid and now > deadline and sent != signal.SIGKILL:
                sent = signal.SIGKILL
                _signal(pid, signal.SIGKILL)
            elif now > deadline + DRAIN:
                raise Unavailable(f"{file.name} does not end")
            await asyncio.sleep(0.02)
            self._reap()

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]


def _environment(state: Path) -> dict[str, str]:
    """Of a node. A service manager hears of the updater, and not of its nodes."""
    given = {name: text for name, text in os.environ.items() if name not in _MANAGER}
    return given | {"SWARM_STATE_DIR": str(state)}


def _signal(pid: int, number: signal.Signals) -> None:
    """To the holder of a lock: its id is no other process's as long as it holds it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        log.debug("process %d has ended", pid)
