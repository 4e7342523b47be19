"""What the three raw NATS contenders share: a server of their own, subjects, and the requester.

They are the reference floors for anything built on NATS: nats-py on uvloop; the payload is raw
tensor bytes without an envelope. The server listens on the loopback, at a port that the system
chooses, and stores in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bench.rivals.contract import AsyncContender, Unavailable
from bench.rivals.processes import Processes, announce
from bench.rivals.stage import Stage
from bench.rivals.workload import Tensors, Workload, pack, unpack

STREAM = "PEERS"
MAX_PAYLOAD = 8 * 1024 * 1024
SERVER_CONFIG = """
host: 127.0.0.1
port: -1
max_payload: {max_payload}
ports_file_dir: "{scratch}"
jetstream {{ store_dir: "{scratch}/jetstream", max_memory_store: 1GB }}
"""


def subject(stage: int) -> str:
    """Where the input of stage ``stage`` is published."""
    return f"peers.stage.{stage}"


def find_server() -> str:
    """The nats-server next to this interpreter or on PATH; ``Unavailable`` when there is none."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("nats-server", path=path)
    if found is None:
        raise Unavailable("no nats-server beside the interpreter or on PATH")
    return found


def start_server(processes: Processes) -> str:
    """Start a server that ``processes`` owns; returns its URL."""
    scratch = processes.scratch
    config = scratch / "server.conf"
    config.write_text(SERVER_CONFIG.format(max_payload=MAX_PAYLOAD, scratch=scratch))
    processes.spawn("nats-server", [find_server(), "-c", str(config)])
    url = ""

    def listening() -> bool:
        nonlocal url
        for file in scratch.glob("*.ports"):
            with contextlib.suppress(ValueError, LookupError):
                url = json.loads(file.read_text())["nats"][0]
        return bool(url)

    processes.wait(listening, 15.0, "nats-server")
    return url


async def connect(url: str) -> Any:
    """A connection as a long-running client would make it."""
    import nats

    return await nats.connect(url, max_reconnect_attempts=-1, ping_interval=5)


class NatsContender(AsyncContender):
    """The requester: one inbox for all answers, one future for each request under way."""

    packages = ("nats", "onnxruntime")
    module: ClassVar[str]
    """The module whose ``__main__`` is a stage."""

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._url = ""
        self._nc: Any = None
        self._ids = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    def check(self) -> None:
        super().check()
        find_server()
        if self.workload.largest + 1024 > MAX_PAYLOAD:
            raise Unavailable(f"a payload of {self.workload.largest} bytes needs a larger limit")

    def start(self) -> None:
        self._url = start_server(self._processes)
        super().start()
        for number in range(1, self.workload.stages + 1):
            self._processes.spawn_module(
                f"stage-{number}",
                self.module,
                str(self.workload.directory),
                str(number),
                self._url,
            )

    async def open(self) -> None:
        self._nc = await connect(self._url)
        self._inbox = self._nc.new_inbox()
        await self._nc.subscribe(f"{self._inbox}.*", cb=self._answered, pending_bytes_limit=1 << 30)
        await self.prepare()
        await self._nc.flush()

    async def prepare(self) -> None:
        """Create what the chain needs on the server."""

    @abstractmethod
    async def send(self, token: str, reply: str, payload: bytes | memoryview) -> None:
        """Publish the input of stage 1; the last stage answers on ``reply``."""

    async def ask(self, inputs: Tensors) -> Tensors:
        token = str(next(self._ids))
        future = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        await self.send(token, f"{self._inbox}.{token}", pack(inputs, self.workload.inputs[0]))
        return unpack(await future, self.workload.outputs[-1])

    async def _answered(self, message: Any) -> None:
        future = self._waiting.pop(message.subject.rpartition(".")[2], None)
        if future is not None and not future.done():
            future.set_result(message.data)

    async def close(self) -> None:
        if self._nc is not None:
            await self._nc.close()


T = TypeVar("T")
Attach = Callable[[Any, T, int], Awaitable[object]]
"""Subscribes a stage (connection, stage, its number); returns the owner of the stage's tasks."""


def serve(attach: Attach[Stage], arguments: list[str]) -> None:
    """A stage's process: ``<ready file> <workload> <number> <url>``; runs until it is ended."""
    serve_stage(attach, Stage.load, arguments)


def serve_stage(attach: Attach[T], load: Callable[[str, int], T], arguments: list[str]) -> None:
    """The same for stages of another kind: ``load(folder, number)``."""
    import uvloop

    ready, directory, number, url = arguments

    async def run() -> None:
        connection = await connect(url)
        # The owner of the stage's tasks lives as long as the stage.
        _owner = await attach(connection, load(directory, int(number)), int(number))
        await connection.flush()
        announce(ready)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
