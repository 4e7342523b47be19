"""What the dashboard's tests share: status documents, a dashboard process, a simulated fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support.commands import environment
from support.meshes import READY
from support.waiting import GENEROUS, eventually_now

from nodes.event_loop import die_with_parent
from swarm.link import Link, LinkOptions
from swarm.subjects import Subjects


@dataclass
class DashboardProcess:
    """`swarm dashboard` as a process of its own. url: with the token, where it may act."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def root(self) -> str:
        return self.url.partition("#")[0]

    def cost(self) -> tuple[float, float]:
        """CPU seconds used so far, and resident megabytes."""
        found = psutil.Process(self.process.pid)
        times = found.cpu_times()
        return times.user + times.system, found.memory_info().rss / 1e6

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GENEROUS)


@contextlib.contextmanager
def dashboard(
    nats: str, folder: Path, *arguments: str, port: int = 0, trust: str = ""
) -> Iterator[DashboardProcess]:
    """A dashboard of the mesh at `nats`, which ends with the block. trust: files of public keys."""
    folder.mkdir(parents=True, exist_ok=True)
    out, log = folder / f"{time.monotonic_ns()}.out", folder / f"{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "nodes.cli.main", "dashboard", "--json"]
    with out.open("wb") as sink, log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--nats", nats, "--port", str(port), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=errors,
            env=environment({"SWARM_TRUST": trust} if trust else {}),
            # Nothing outlives a test run that is killed.
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    try:
        # In the line it says where; at its end before that, nothing.
        eventually_now(
            lambda: "\n" in out.read_text() or process.poll() is not None, "a dashboard", READY
        )
        assert out.read_text(), log.read_text()
        told = json.loads(out.read_text())
        assert "url" in told, told
        yield DashboardProcess(process, told["url"], log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GENEROUS)
            finally:
                process.kill()


def fetch(url: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer, errors included. body: sent as JSON, by POST."""
    data = None if body is None else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if data is not None:
        given.setdefault("content-type", "application/json")
    request = urllib.request.Request(url, data=data, headers=given)
    try:
        with urllib.request.urlopen(request, timeout=GENEROUS) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


class SimulatedFleet:
    """Nodes that only speak: each publishes a status a second, evenly spread over it.

    documents(second): what all of them say in this second, by node.
    """

    def __init__(self, link: Link, documents: Callable[[int], list[dict[str, Any]]]) -> None:
        self._link = link
        self._documents = documents

    async def run(self) -> None:
        """Until cancelled."""
        for second in range(1 << 30):
            began = asyncio.get_running_loop().time()
            documents = self._documents(second)
            for number, document in enumerate(documents):
                publish_status(self._link, document)
                due = began + (number + 1) / len(documents)
                pause = due - asyncio.get_running_loop().time()
                if pause > 0.005:
                    await asyncio.sleep(pause)  # the pace of the fleet
            await asyncio.sleep(max(0.0, began + 1 - asyncio.get_running_loop().time()))


@contextlib.asynccontextmanager
async def linked(url: str, **options: Any) -> AsyncIterator[Link]:
    """A connection to a server that stays for the block."""
    link = Link(LinkOptions(servers=(url,), **options))
    running = asyncio.create_task(link.run())
    await link.ready(GENEROUS)
    try:
        yield link
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def publish_status(link: Link, document: dict[str, Any]) -> None:
    subjects = Subjects(by_user=bool(link.options.connects_as))
    link.publish(subjects.status(document["node"]), json.dumps(document).encode())


def publish_event(link: Link, kind: str, node: str, **fields: Any) -> None:
    document = {"v": 1, "kind": kind, "node": node, "role": "shard-1"} | fields
    link.publish(f"swarm.default.events.{kind}", json.dumps(document).encode())
