"""The process that asks all the time: its own, so that starting and killing nodes never delays it.

Open loop: request i is due at start + i / rate, whatever became of the earlier ones. Each answer is
compared with the whole model's. Superfluous answers are compared too: a second subscription on the
inbox sees the answers that the requester drops after the first one.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from support.faulty_mesh import READY_TIMEOUT, Rig
from support.meshes import close, digits

import swarm
from bench.helpers import arguments, commands, helper, tell
from bench.paced import paced
from nodes.event_loop import run_event_loop
from swarm.errors import DecodeError, Status
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
    """`run()` asks until it is cancelled. rate: requests a second. budget: seconds."""

    def __init__(self, mesh: swarm.Mesh, rate: float, budget: float) -> None:
        self._mesh = mesh
        self._images, self._logits = digits()
        self._rate = rate
        self._budget = budget
        self._by_id: dict[str, Asked] = {}
        self._ended: list[Asked] = []
        self._doubles: list[list[float]] = []  # [arrived, sent, wrong]
        self._tasks: set[asyncio.Task[None]] = set()
        mesh.link.subscribe(f"{mesh.link.options.inbox}.*", self._on_inbox_message)

    async def run(self) -> None:
        async for index, due in paced(self._rate):
            task = asyncio.create_task(self._ask(Asked(index, due)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, asked: Asked) -> None:
        request = ulid()
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
        asked = self._by_id.get(result.id[:26])  # what follows is unknown to who asks
        if asked is None:
            return
        asked.answers += 1
        right = self._right(asked, result)
        asked.wrong = asked.wrong or not right
        if asked.answers > 1:
            self._doubles.append([time.monotonic(), asked.sent, float(not right)])

    async def take(self) -> dict[str, Any]:
        """The records since the last `take`, once the requests under way have ended."""
        if waiting := list(self._tasks):
            await asyncio.wait(waiting, timeout=self._budget + END_GRACE)
        ended, self._ended = self._ended, []
        doubles, self._doubles = self._doubles, []
        return {"requests": [_row(asked) for asked in ended], "doubles": doubles}


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


@asynccontextmanager
async def load_on(rig: Rig, rate: float) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """Yields what takes the records: `await take()`. rate: requests a second."""
    words = {
        "url": rig.local.url,
        "mesh": rig.local.name,
        "rate": rate,
        "budget": rig.layout.budget,
        "shm": rig.layout.servers == 1,
    }
    async with helper(__name__, words) as process:

        async def take() -> dict[str, Any]:
            return dict(await process.answer("take", rig.layout.budget + READY_TIMEOUT))

        yield take


async def _main(words: dict[str, Any]) -> int:
    async with swarm.connect(words["url"], words["mesh"], shm=words["shm"]) as mesh:
        load = Load(mesh, words["rate"], words["budget"])
        gc.collect()
        gc.freeze()
        running = asyncio.create_task(load.run())
        try:
            async for _ in commands():
                if running.done():
                    break
                tell(await load.take())
        finally:
            running.cancel()
            await asyncio.wait([running])
    if not running.cancelled():
        running.result()
    return 0


if __name__ == "__main__":
    raise SystemExit(run_event_loop(_main(arguments())))
