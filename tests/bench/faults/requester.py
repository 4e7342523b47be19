"""The process that asks all the time: its own, so that starting and killing nodes never delays it.

Open loop: request i is due at start + i / rate, whatever became of the earlier ones. Each answer is
compared with the whole model's. Superfluous answers are compared too: a second subscription on the
inbox sees the answers that the requester drops after the first one. Commands come on standard
input: `take FILE` writes the records since the last `take`, once all requests under way have ended.
The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.faulty_mesh import READY_TIMEOUT, Rig
from support.meshes import close, digits

import swarm
from bench.paced import paced
from nodes.event_loop import die_with_parent, run_event_loop
from swarm.errors import DecodeError, Status, Unavailable
from swarm.ids import ulid
from swarm.link import LinkMessage
from swarm.wire.messages import Result

TOLERANCE = 1e-4  # relative to the largest logit; shards and whole are optimised apart
END_GRACE = 1.0  # seconds past the budget until `take` stops waiting for a request


@dataclass(slots=True)
class Asked:
    """One request; times are seconds of `time.monotonic()`, 0.0 until the moment has come."""

    index: int
    due: float
    sent: float = 0.0
    done: float = 0.0
    status: str = ""
    message: str = ""
    attempt: int = 0
    wrong: bool = False
    answers: int = 0
    nodes: list[str] = field(default_factory=list)


class Load:
    """`run()` asks until it is cancelled.

    rate: requests a second; 0: `in_flight` at a time, each as soon as another has ended. budget:
    seconds.
    """

    def __init__(
        self,
        mesh: swarm.Mesh,
        rate: float,
        in_flight: int,
        budget: float,
    ) -> None:
        self._mesh = mesh
        self._images, self._logits = digits()
        self._rate = rate
        self._in_flight = in_flight
        self._budget = budget
        self._by_id: dict[str, Asked] = {}
        self._ended: list[Asked] = []
        self._doubles: list[list[float]] = []  # [arrived, sent, wrong]
        self._tasks: set[asyncio.Task[None]] = set()
        if rate > 0:  # with rate 0 the second subscription would be a load of its own
            mesh.link.subscribe(f"{mesh.link.options.inbox}.*", self._on_inbox_message)

    async def run(self) -> None:
        if self._rate <= 0:
            await asyncio.gather(*(self._closed_loop() for _ in range(self._in_flight)))
            return
        async for index, due in paced(self._rate):
            task = asyncio.create_task(self._ask(Asked(index, due)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _closed_loop(self) -> None:
        index = 0
        while True:
            await self._ask(Asked(index, time.monotonic()))
            index += 1

    async def _ask(self, asked: Asked) -> None:
        request = ulid()
        if self._rate > 0:
            self._by_id[request] = asked
        at = asked.index % len(self._images)
        asked.sent = time.monotonic()
        result = await self._mesh.ask(
            "digits", {"image": self._images[at : at + 1]}, self._budget, request_id=request
        )
        asked.done = time.monotonic()
        asked.status = str(result.status)
        asked.message = result.message
        asked.attempt = result.attempt
        asked.nodes = [hop.node for hop in result.hops]
        asked.wrong = asked.wrong or not self._right(asked, result)
        self._ended.append(asked)

    def _right(self, asked: Asked, result: Result) -> bool:
        """Whether a result is right. A failure is not a wrong answer: it counts as lost."""
        if result.status is not Status.OK:
            return True
        logits = result.outputs.get("logits")
        at = asked.index % len(self._logits)
        return logits is not None and close(logits, self._logits[at : at + 1], TOLERANCE)

    def _on_inbox_message(self, message: LinkMessage) -> None:
        """Sees every message to this client. PubAcks are JSON; results are MessagePack maps."""
        if message.status or bytes(message.data[:1]) in (b"", b"{"):
            return
        try:
            result = Result.decode(message.data)
        except DecodeError:
            return  # an answer of JetStream's API; a damaged result counts as lost
        asked = self._by_id.get(result.id)
        if asked is None:
            return
        asked.answers += 1
        right = self._right(asked, result)
        asked.wrong = asked.wrong or not right
        if asked.answers > 1:
            self._doubles.append([time.monotonic(), asked.sent, float(not right)])

    async def take(self, path: Path) -> None:
        """Write the records since the last `take`, once the requests under way have ended."""
        if waiting := list(self._tasks):
            await asyncio.wait(waiting, timeout=self._budget + END_GRACE)
        ended, self._ended = self._ended, []
        doubles, self._doubles = self._doubles, []
        doc = {"requests": [_row(asked) for asked in ended], "doubles": doubles}
        path.write_text(json.dumps(doc))  # noqa: ASYNC240 - no trial runs now


def _row(asked: Asked) -> dict[str, Any]:
    row: dict[str, Any] = {
        "due": asked.due,
        "sent": asked.sent,
        "done": asked.done,
        "status": asked.status,
        "attempt": asked.attempt,
        "wrong": asked.wrong,
        "nodes": asked.nodes,
    }
    return row | {"message": asked.message} if asked.message else row


class LoadProcess:
    """A running process of this module, on the side of the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path, budget: float) -> None:
        self._process = process
        self._budget = budget
        self._file = directory / f"load-{process.pid}.json"

    async def take(self) -> dict[str, Any]:
        """The records since the last call. Raises `Unavailable` when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"take {self._file}\n".encode())
        async with asyncio.timeout(self._budget + READY_TIMEOUT):
            line = await self._process.stdout.readline()
        if not line:
            raise Unavailable("the benchmark's own requester ended early")
        return dict(json.loads(self._file.read_text()))

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(5.0):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def load_on(rig: Rig, rate: float, in_flight: int = 0) -> AsyncIterator[LoadProcess]:
    """rate: requests a second, or 0 for `in_flight` at a time."""
    arguments = {
        "url": rig.local.url,
        "mesh": rig.local.name,
        "rate": rate,
        "in_flight": in_flight,
        "budget": rig.layout.budget,
        "shm": rig.layout.servers == 1,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", __name__, json.dumps(arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    load = LoadProcess(process, rig.directory, rig.layout.budget)
    try:
        yield load
    finally:
        await load.stop()


async def _main(arguments: dict[str, Any]) -> int:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with swarm.connect(arguments["url"], arguments["mesh"], shm=arguments["shm"]) as mesh:
        load = Load(
            mesh,
            arguments["rate"],
            arguments["in_flight"],
            arguments["budget"],
        )
        gc.collect()
        gc.freeze()
        running = asyncio.create_task(load.run())
        try:
            while line := (await reader.readline()).decode().split():
                if running.done():
                    break
                await load.take(Path(line[1]))
                print("taken", flush=True)
        finally:
            running.cancel()
            await asyncio.wait([running])
    if not running.cancelled():
        running.result()
    return 0


if __name__ == "__main__":
    raise SystemExit(run_event_loop(_main(json.loads(sys.argv[1]))))
