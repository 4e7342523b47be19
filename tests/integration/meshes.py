"""Shared by the integration tests: models, a load generator, waits, commands, process trees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import swarm
from nodes.local.mesh import LocalMesh, push
from nodes.local.supervisor import NodeProcess
from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import NotConnected
from swarm.link import jetstream
from swarm.subjects import api

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = 1e6  # bytes a millisecond: so that compute decides the cuts
READY = 40.0  # seconds that node processes may take to start on a busy machine
TOLERANCE = 1e-5  # relative, against the whole model


# --- models -----------------------------------------------------------------------------


@cache
def split_digits(version: str = "1", stages: int = 3, edge_layers: int = 0) -> SplitResult:
    """The digits model; stages are timed once a session."""
    return split(
        digits_model(),
        name="digits" if not edge_layers else "digits-edge",
        version=version,
        stages=stages,
        edge_layers=edge_layers or None,
        bandwidth=LOOPBACK,
    )


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Held-out images [n, 1, 8, 8], and the whole model's logits [n, 10] for each alone."""
    images, _ = digits_heldout()
    rows = whole(digits_model(), [{"image": images[i : i + 1]} for i in range(len(images))])
    return images, np.concatenate([row["logits"] for row in rows])


def whole(model: bytes, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The uncut model's outputs."""
    runtime = OrtRuntime(model)
    try:
        return [runtime.run(feed) for feed in feeds]
    finally:
        runtime.close()


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Equal to the whole model, relative to its largest value."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(actual - expected).max()) <= TOLERANCE * scale


async def awake(local: LocalMesh) -> None:
    """Wait until a mesh of the session is connected: while tests run that have an event loop of
    their own, nobody answers the server's pings, and it ends the connection."""
    link = local.mesh.link
    async with asyncio.timeout(READY):
        while True:
            with contextlib.suppress(NotConnected):
                await link.flush()
                return
            await link.ready()


async def add_model(local: LocalMesh, result: SplitResult, *roles: str) -> list[NodeProcess]:
    """Push a version and start nodes for it; returns them, ready."""
    await push(local, result.manifest.to_json(), result.files)
    started = [local.start(role, result.manifest.model) for role in roles]
    await local.ready(READY)
    return started


async def dismiss(local: LocalMesh, nodes: list[NodeProcess]) -> list[int]:
    """End some nodes of a mesh by SIGTERM; returns their exit codes."""
    for node in nodes:
        node.wanted = False
        node.signal(signal.SIGTERM)
    await until(lambda: not any(node.alive for node in nodes), 15.0, "the nodes end")
    for node in nodes:
        local.supervisor.nodes.remove(node)
    return [node.process.returncode for node in nodes if node.process is not None]


# --- load -------------------------------------------------------------------------------


@dataclass
class Load:
    """A steady stream of digits, each answer compared with the whole model's."""

    mesh: swarm.Mesh
    rate: float
    budget: float = 5.0
    model: str = "digits"
    delivery: str = "durable"
    results: list[swarm.Result] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    wrong: int = 0

    async def run(self, count: int) -> None:
        """Send `count` requests at `rate` a second, answered or not."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / self.rate - time.monotonic()))
                group.create_task(self._one(number))

    async def _one(self, number: int) -> None:
        images, logits = digits()
        at = number % len(images)
        self.sent_at.append(time.monotonic())
        image = {"image": images[at : at + 1]}
        result = await self.mesh.ask(self.model, image, self.budget, delivery=self.delivery)
        self.results.append(result)
        if result.status is swarm.Status.OK and not close(
            result.outputs["logits"], logits[at : at + 1]
        ):
            self.wrong += 1

    @property
    def failures(self) -> list[str]:
        return [
            f"{r.status} at stage {r.stage}: {r.message} (attempt {r.attempt})"
            for r in self.results
            if r.status is not swarm.Status.OK
        ]

    @property
    def slowest(self) -> float:
        """Seconds."""
        return max(r.latency for r in self.results)

    def check(self, count: int) -> None:
        """Every request answered, once, and rightly."""
        assert self.failures == []
        assert self.wrong == 0
        assert len({r.id for r in self.results}) == len(self.results) == count


async def good_request(mesh: swarm.Mesh, model: str = "digits", budget: float = 3.0) -> None:
    """One good request is served, rightly."""
    images, logits = digits()
    result = await mesh.infer(model, {"image": images[:1]}, budget)
    assert close(result.outputs["logits"], logits[:1])


# --- waiting, processes -----------------------------------------------------------------


async def until(condition: Callable[[], Any], timeout: float, what: str) -> None:
    """Fails when `condition` does not come true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.01)


async def emptied(local: LocalMesh, model: str = "digits") -> None:
    """Until every lane of the model has nothing stored and nothing handed out."""
    stream = local.mesh.subjects.stream(model, "1")
    async with asyncio.timeout(10):
        while True:
            info = await jetstream.call(local.mesh.link, api("STREAM.INFO", stream))
            if info["state"]["messages"] == 0:
                return
            await asyncio.sleep(0.02)


def until_now(condition: Callable[[], Any], timeout: float, what: str) -> None:
    """`until`, for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without settings that would reach the commands."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SWARM_")}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | dict(extra or {})


def heed_ctrl_c() -> None:
    """Give this process the default for SIGINT. A shell lets its background jobs ignore SIGINT, and
    the processes that they start inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Command:
    """A command as its own process. Its output goes to files: a full pipe would block it."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    family: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    def look(self) -> dict[int, psutil.Process]:
        """Its descendants, those seen earlier included."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family[child.pid] = child
        except psutil.NoSuchProcess:
            pass
        return self.family

    def remaining(self) -> list[str]:
        """Descendants that still run, as command lines."""
        left = []
        for process in self.family.values():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
            except psutil.NoSuchProcess:
                continue
        return left

    def signal(self, number: signal.Signals) -> None:
        """Signal the command only, and note the processes that it has started so far."""
        self.look()
        self.process.send_signal(number)

    def wait(self, timeout: float = 20.0) -> int:
        """Its exit code; fails with its output when it does not end."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            self.look()
            assert time.monotonic() < deadline, f"did not end in {timeout} s:\n{self.stderr}"
            time.sleep(0.02)
        return int(self.process.returncode)

    def ready_line(self, timeout: float = READY) -> dict[str, Any]:
        """The first line on standard output, as JSON."""

        def arrived() -> bool:
            assert self.process.poll() is None or "\n" in self.stdout, self.stderr
            return "\n" in self.stdout

        until_now(arrived, timeout, f"a ready line; it says:\n{self.stderr}")
        self.look()
        return dict(json.loads(self.stdout.splitlines()[0]))

    def end(self) -> None:
        """Kill the command and all its descendants."""
        self.look()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for process in self.family.values():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


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
        with out.open("wb") as sink, err.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=errors,
                cwd=ROOT,
                env=environment({"TMPDIR": str(self.temporary), **(env or {})}),
                preexec_fn=heed_ctrl_c,
            )
        command = Command(process, out, err)
        self.started.append(command)
        return command

    def swarm(self, *arguments: str, timeout: float = 40.0) -> Command:
        """Run `swarm …` to its end."""
        command = self.start("nodes.cli.main", *arguments)
        command.wait(timeout)
        return command

    def end(self) -> None:
        for command in self.started:
            command.end()


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Commands(folder)
    try:
        yield made
    finally:
        made.end()
