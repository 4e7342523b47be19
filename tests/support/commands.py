"""Commands as processes of their own: started, ended, and checked to leave nothing behind."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import typer
from typer.testing import CliRunner

from nodes.cli.main import app
from nodes.cli.node import node
from nodes.console import err, out

from .waiting import GENEROUS, eventually_now

ROOT = Path(__file__).resolve().parents[2]
# In the environment of a command, which all its descendants inherit: whose they are shows even
# where their parents have ended.
FAMILY = "TEST_FAMILY"


def product_commands() -> dict[str, Any]:
    """All commands of `swarm` but the benchmarks, which are in no package, by the words that call
    them."""
    whole = typer.main.get_command(app)
    return {words: each for words, each in _leaves(whole, "") if not words.startswith("bench ")}


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, f"{words} {name}".strip())


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without settings that would reach the commands."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SWARM_")}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | dict(extra or {})


def heed_ctrl_c() -> None:
    """Give this process the default for SIGINT. A shell lets its background jobs ignore SIGINT, and
    the processes that they start inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def environment_of(pid: int) -> bytes:
    """The environment of a process, as its kernel tells it; empty where it has ended or is another
    user's.

    A process that is just becoming another program has none for a moment, though it runs and holds
    its parent's locks: it is asked again.
    """
    try:
        for _ in range(50):
            told = Path(f"/proc/{pid}/environ").read_bytes()
            if told or not _becomes_a_program(pid):
                return told
            time.sleep(0.001)
    except (OSError, psutil.Error):
        pass  # it has ended, or is another user's
    return b""


def _becomes_a_program(pid: int) -> bool:
    """Whether a process without an environment may get one: it is no zombie and no thread of the
    kernel, which are the other two that have none."""
    process = psutil.Process(pid)
    return process.status() != psutil.STATUS_ZOMBIE and 2 not in (pid, process.ppid())


@dataclass
class Command:
    """A command as its own process. Its output goes to files: a full pipe would block it."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    mark: str

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    @property
    def family(self) -> dict[int, psutil.Process]:
        """Its descendants that run, by process id, wherever they were reparented to."""
        found = {}
        mark = f"{FAMILY}={self.mark}".encode()
        for pid in psutil.pids():
            if pid != self.process.pid and mark in environment_of(pid).split(b"\0"):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                    found[pid] = psutil.Process(pid)
        return found

    def remaining(self) -> list[str]:
        """Descendants that still run, as command lines."""
        left = []
        for process in self.family.values():
            try:
                left.append(" ".join(process.cmdline()))
            except psutil.NoSuchProcess:
                continue
        return left

    def signal(self, number: signal.Signals) -> None:
        """Signal the command only."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 2 * GENEROUS) -> int:
        """Its exit code; fails with its output when it does not end. Its start is a part of it."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end in {timeout} s:\n{self.stderr}") from None

    def says(self, text: str, timeout: float = 2 * GENEROUS) -> None:
        """Wait until its standard error holds this text; fails when it ends without."""

        def said() -> bool:
            ended = self.process.poll() is not None
            return text in self.stderr or (ended and self._silent(text))

        eventually_now(said, f"“{text}”; it says:\n{self.stderr}", timeout)

    def _silent(self, text: str) -> bool:
        raise AssertionError(f"it ended without “{text}”:\n{self.stderr}")

    def ready_line(self, timeout: float = 2 * GENEROUS) -> dict[str, Any]:
        """The first line on standard output, as JSON."""

        def arrived() -> bool:
            assert self.process.poll() is None or "\n" in self.stdout, self.stderr
            return "\n" in self.stdout

        eventually_now(arrived, "a ready line", timeout)
        return dict(json.loads(self.stdout.splitlines()[0]))

    def leaves_nothing(self) -> None:
        """Wait until no process that it started runs any more."""
        what = f"it leaves nothing:\n{self.remaining()}"
        eventually_now(lambda: not self.family, what, every=0.05)


@dataclass(frozen=True)
class Said:
    """How a command ended that ran in this process."""

    code: int
    stdout: str
    stderr: str


class Commands:
    """Starts commands, and ends them all with the test.

    temporary: where they put their temporary files. A command that is killed leaves some there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.started: list[Command] = []

    def start(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Command:
        number = len(self.started)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        mark = secrets.token_hex(8)
        given = {"TMPDIR": str(self.temporary), FAMILY: mark, **(env or {})}
        with out.open("wb") as sink, err.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=errors,
                cwd=ROOT,
                env=environment(given),
                preexec_fn=heed_ctrl_c,
            )
        command = Command(process, out, err, mark)
        self.started.append(command)
        return command

    def swarm(self, *arguments: str, timeout: float = 2 * GENEROUS) -> Command:
        """Run `swarm …` to its end, as a process."""
        command = self.start("nodes.cli.main", *arguments)
        command.wait(timeout)
        return command

    def end(self) -> None:
        """End all that run, in order; nothing that any of them started may be left."""
        for command in self.started:
            command.process.terminate()
        try:
            for command in self.started:
                command.wait()
                command.leaves_nothing()
        finally:
            for command in self.started:
                for process in command.family.values():
                    process.kill()
                if command.process.poll() is None:
                    command.process.kill()
                    command.process.wait(10)


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Commands(folder)
    try:
        yield made
    finally:
        made.end()


_one_at_a_time = threading.Lock()  # a command has this process's standard output to itself


def said(*arguments: str) -> Said:
    """Run `swarm …` in this process: what it prints and how it ends, without the second that a
    process takes to start. In a thread of its own where a loop runs."""
    without = {name: None for name in os.environ if name.startswith("SWARM_")}
    with _one_at_a_time:
        out.width = err.width = 200  # a table of 80 columns cuts what is looked for
        result = CliRunner(env=without).invoke(app, list(arguments))
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Said(result.exit_code, result.stdout, result.stderr)


def node_said(*arguments: str) -> Said:
    """As `said`, of a `swarm-node` that ends for a wrong setting."""
    told, logs = io.StringIO(), logging.getLogger()
    handlers, level = logs.handlers[:], logs.level
    with _one_at_a_time, contextlib.redirect_stderr(told):
        try:
            code = node(arguments, {})
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            logs.handlers[:], logs.level = handlers, level
    return Said(code, "", told.getvalue())
