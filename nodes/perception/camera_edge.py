"""An edge with cameras: the newest frame, the model's answer, the result with its age.

    source ─► slot of one ─► turn ─► prepare ─► mesh ─► read ─► sink
    (thread)                 (fair, few on their way)

A frame is taken from its source when the mesh has room for it, and never before: a slow mesh gets
fewer frames, and none that is old.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nodes.config import EdgeOptions
from nodes.edge.edge import EdgeCounters, result_line
from nodes.edge.kept_results import KeptResults
from nodes.life.node import Node
from nodes.perception.anatomy import Anatomy, explained
from nodes.perception.frame import Frame, Source
from nodes.perception.picture_task import PictureTask, Tasks
from nodes.perception.results import told
from nodes.perception.sources.opened import open_sources
from nodes.perception.turns import Turns
from nodes.stage.counters import histogram, latencies
from shards.errors import ShardsError
from swarm.errors import Status, SwarmError
from swarm.flow.latency import LatencyWindow
from swarm.ids import ulid
from swarm.wire.messages import Request, Result

log = logging.getLogger("swarm.camera")

THREADS = 2  # for pixels; the models' own threads do the rest
EXPLAIN_EVERY = 1.0  # seconds
T = TypeVar("T")


@dataclass
class Eye:
    """What is known of one camera. age: from a frame's capture to its result. newest: sequence of
    the newest frame that has a result."""

    source: Source
    age: LatencyWindow = field(default_factory=LatencyWindow)
    sent: int = 0
    newest: int = -1

    def status(self, now: float) -> dict[str, Any]:
        """For status documents. `age_ms`: of the last ten seconds; `age_s`: since the start."""
        ages = {"age_ms": latencies(self.age, now), "age_s": histogram(self.age)}
        return {**self.source.status(), "sent": self.sent, **ages}


class Cameras:
    """What an edge with cameras adds to its node's status."""

    def __init__(self, counters: EdgeCounters) -> None:
        self.eyes: list[Eye] = []
        self._counters = counters

    def status(self) -> dict[str, Any]:
        """The fields `edge` and `cameras`."""
        now = time.monotonic()
        cameras = [eye.status(now) for eye in self.eyes]
        if cameras:
            self._counters.captured = sum(int(str(each["frames"])) for each in cameras)
            self._counters.dropped = sum(int(str(each["dropped"])) for each in cameras)
        return {**self._counters.status(), "cameras": cameras}


class CameraEdge:
    """`run(stop)`: the node's life, with its cameras beside it."""

    def __init__(
        self, node: Node, options: EdgeOptions, counters: EdgeCounters, cameras: Cameras
    ) -> None:
        self.node = node
        self.options = options
        self.counters = counters
        self._cameras = cameras
        self._results = KeptResults(node.mesh.link, node.mesh.subjects.results(options.sink))
        self._tasks = Tasks(node.mesh)
        self._turns = Turns(options.in_flight)
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._sent = 0
        self._over = asyncio.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="pixels")
        self._said: set[str] = set()
        self._explained = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Ends when every source has ended, when `count` frames were answered or, on `stop`, when
        those on their way are. Raises `SwarmError`."""
        sources = open_sources(self.options.source, self.options.on_full, self.options.rate)
        self._cameras.eyes = [Eye(source) for source in sources]
        finished = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                life = group.create_task(self.node.run(finished), name="node")
                work = group.create_task(self._work(), name="cameras")
                waiter = group.create_task(stop.wait(), name="stop")
                await asyncio.wait({life, work, waiter}, return_when=asyncio.FIRST_COMPLETED)
                self._end()
                if self.node.became_ready.is_set() and not work.done() and not life.done():
                    within = self.node.config.budget + 1.0
                    first = asyncio.FIRST_COMPLETED
                    await asyncio.wait({work, life}, timeout=within, return_when=first)
                waiter.cancel()
                work.cancel()
                finished.set()
        finally:
            await asyncio.gather(*(source.close() for source in sources))
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        await self.node.became_ready.wait()
        async with asyncio.TaskGroup() as group:
            for eye in self._cameras.eyes:
                group.create_task(self._watch(eye, group), name=f"camera {eye.source.name}")

    def _end(self) -> None:
        """No frame is sent from now on."""
        self._over.set()
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_result(False)

    async def _watch(self, eye: Eye, group: asyncio.TaskGroup) -> None:
        """Send one camera's frames, each when it is its turn."""
        over = asyncio.create_task(self._over.wait(), name="over")
        try:
            while not self._over.is_set():
                arrived = asyncio.ensure_future(eye.source.arrived())
                await asyncio.wait({arrived, over}, return_when=asyncio.FIRST_COMPLETED)
                if not arrived.done():
                    arrived.cancel()
                    return
                if not arrived.result() or not await self._turn(eye.source.name):
                    return
                frame = await eye.source.latest()
                if frame is None or self._over.is_set():
                    self._ended()
                    return
                self._sent += 1
                if self.options.count and self._sent >= self.options.count:
                    self._end()
                eye.sent += 1
                group.create_task(self._see(eye, frame, self._sent), name=f"frame {self._sent}")
        finally:
            over.cancel()

    # --- turns ----------------------------------------------------------------------------

    async def _turn(self, name: str) -> bool:
        """Wait until this source may send a frame; False when none may any more."""
        if self._over.is_set():
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[name] = turn
        self._grant()
        try:
            return await turn
        finally:
            self._waiting.pop(name, None)

    def _grant(self) -> None:
        send_rate = self.node.mesh.bulk.send_rate
        now = time.monotonic()
        while True:
            waiting = [name for name, turn in self._waiting.items() if not turn.done()]
            name = self._turns.next(waiting, send_rate.transfer(now), send_rate.round_trip)
            if name is None:
                return
            self._turns.began(name, now)
            self._waiting[name].set_result(True)

    def _ended(self) -> None:
        self._turns.ended()
        self._grant()

    # --- a frame --------------------------------------------------------------------------

    async def _see(self, eye: Eye, frame: Frame, number: int) -> None:
        anatomy = Anatomy(frame.captured, frame.decode_ms / 1e3, time.monotonic())
        try:
            result, task = await self._asked(frame, number, anatomy)
        finally:
            self._ended()
        found = None
        if result.status is Status.OK:
            self._turns.answered(result.latency, result.hops)
            self.counters.answered += 1
            self.counters.degraded += result.degraded
            if task is not None:
                found = await self._read(task, result, frame)
        else:
            self.counters.failed += 1
            self._say(f"a frame has no answer: {result.status}: {result.message}")
        anatomy.read = time.monotonic()
        eye.age.add(anatomy.read - frame.captured, anatomy.read)
        eye.newest = max(eye.newest, frame.sequence)
        self._deliver(frame, result, found, anatomy)

    async def _asked(
        self, frame: Frame, number: int, anatomy: Anatomy
    ) -> tuple[Result, PictureTask | None]:
        """The answer; a failure is a result, too. With the task that reads it."""
        node, model = self.node, self.node.config.model_name
        request = Request({}, budget=node.config.budget, agent=node.id)
        request.id = ulid()
        try:
            version = node.config.version or await node.mesh.catalog.version_for(
                model, request.agent, request.session, request.id
            )
            task = await self._tasks.of(model, version)
            request.inputs = await self._in_pool(lambda: task.prepare(frame.image))
        except (SwarmError, ShardsError) as error:
            status = error.status if isinstance(error, SwarmError) else Status.INTERNAL
            return Result(request.id, model, "", status=status, message=str(error)), None
        anatomy.prepared = time.monotonic()
        result = await node.answerer.answer(model, request, number)
        anatomy.answered, anatomy.hops = time.monotonic(), result.hops
        if result.status is Status.OK and result.version not in ("", version):
            with contextlib.suppress(SwarmError, ShardsError):  # it is told as it came
                return result, await self._tasks.of(model, result.version)
            return result, None
        return result, task

    async def _read(self, task: PictureTask, result: Result, frame: Frame) -> Any:
        height, width = frame.image.shape[:2]
        try:
            return await self._in_pool(lambda: task.read(result.outputs, (height, width)))
        except (SwarmError, ShardsError, ValueError) as error:
            self._say(f"an answer cannot be read by the model's task: {error}")
            return None

    def _deliver(self, frame: Frame, result: Result, found: Any, anatomy: Anatomy) -> None:
        line = {"source": frame.source, **result_line(frame.sequence, result, told=False)}
        line["age_ms"] = round((anatomy.read - frame.captured) * 1e3, 3)
        line["decode_ms"] = round(frame.decode_ms, 3)
        line["spent_ms"] = anatomy.parts()
        if result.status is Status.OK:
            line |= told(found, result.outputs)
        data = json.dumps(line, separators=(",", ":"))
        if self.options.sink == "stdout":
            sys.stdout.write(data + "\n")
            sys.stdout.flush()
        else:
            self._results.publish(data.encode())
        self._explain(frame, anatomy)

    def _explain(self, frame: Frame, anatomy: Anatomy) -> None:
        if self.node.config.camera.explain and anatomy.read >= self._explained + EXPLAIN_EVERY:
            self._explained = anatomy.read
            print(explained(frame.source, frame.sequence, anatomy), file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        """A fault of many frames: said once."""
        if text not in self._said and len(self._said) < 32:
            self._said.add(text)
            log.warning("%s", text)

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
