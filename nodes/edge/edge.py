"""The edge: captures, runs the first layers, asks the mesh, hands results to a sink.

    source ─► bounded queue ─► in_flight tasks: stage 0, mesh ─► sink
              (drop-oldest | block)

Behind a link that is slower than the source, as many are in flight as keep the link busy, and of
those that wait the newest is sent (`nodes.edge.live`).

What leaves this process is the output of stage 0, or the model's input where the model was split
without edge layers; with `--placement`, what the edge's settings allow. Neither is anonymous:
features can tell who is in a picture.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nodes.config import EdgeOptions
from nodes.edge.kept_results import KeptResults
from nodes.edge.live import CaptureBacklog
from nodes.life.node import Node
from nodes.placing.ways import RAW
from swarm.errors import InvalidArgument, Status
from swarm.flow.latency import Usual
from swarm.wire.messages import Request, Result

log = logging.getLogger("swarm.edge")

DIGITS = "digits"
USUAL_RATE = 30.0  # captures a second, without `--rate`
REPORT_DROPPED_EVERY = 10.0  # seconds


def open_source(name: str) -> list[dict[str, np.ndarray]]:
    """The captures of a source, played in turn for ever. Raises `InvalidArgument`.

    `digits`: the held-out handwritten digits, one image each. `FILE.npz`: arrays named as
    the model's inputs; axis 0 counts the captures, each is sent as a batch of one.
    """
    if name == DIGITS:
        from shards.zoo import digits_heldout

        images, _labels = digits_heldout()
        return [{"image": images[i : i + 1]} for i in range(len(images))]
    path = Path(name)
    if path.suffix != ".npz" or not path.exists():
        raise InvalidArgument(f"--source {name!r}: it is `digits` or an existing .npz file")
    with np.load(path) as arrays:
        columns = {key: arrays[key] for key in arrays.files}
    lengths = {len(column) for column in columns.values() if column.ndim}
    if len(lengths) != 1:
        raise InvalidArgument(f"{name}: all arrays must have the same number of captures")
    return [
        {key: column[i : i + 1] for key, column in columns.items()} for i in range(lengths.pop())
    ]


@dataclass(slots=True)
class EdgeCounters:
    """Captures since the start, by how they ended."""

    captured: int = 0
    dropped: int = 0
    answered: int = 0
    failed: int = 0
    degraded: int = 0

    def status(self) -> dict[str, Any]:
        """The field that an edge adds to its node's status documents."""
        return {"edge": asdict(self)}


class Capture(NamedTuple):
    """at: `time.monotonic()` of its capture."""

    sequence: int
    inputs: dict[str, np.ndarray]
    at: float


class Edge:
    """`run(stop)`: the node's life, with capture beside it.

    counters: given to the node too, whose status documents show them.
    """

    def __init__(self, node: Node, options: EdgeOptions, counters: EdgeCounters) -> None:
        self.node = node
        self.options = options
        self.counters = counters
        sink = node.mesh.subjects.results(options.sink)
        self._results = KeptResults(node.mesh.link, sink)
        # Captures that are played for ever stand for a camera; so many of them are all wanted.
        drops = options.on_full == "drop-oldest" or (
            options.on_full == "auto" and not options.count
        )
        self._queue: CaptureBacklog[Capture] = CaptureBacklog(
            options.queue, options.in_flight, drops
        )
        self._mesh_time = Usual()
        self._reported_dropped = 0
        self._report_at = 0.0
        self._filled = asyncio.Event()
        self._space = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Ends when `count` captures were answered or, on `stop`, when those under way are.

        Raises `SwarmError`.
        """
        if self.options.send != RAW:
            raise InvalidArgument(f"--send {self.options.send} is for cameras, videos and pictures")
        captures = open_source(self.options.source)
        finished = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            life = group.create_task(self.node.run(finished), name="node")
            work = group.create_task(self._work(captures), name="edge")
            waiter = group.create_task(stop.wait(), name="stop")
            await asyncio.wait({life, work, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if self.node.became_ready.is_set() and not work.done() and not life.done():
                self._ended.set()
                self._space.set()
                self._filled.set()
                await asyncio.wait(
                    {work, life},
                    timeout=self.node.config.budget + 1.0,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            waiter.cancel()
            work.cancel()
            finished.set()
        told = self.counters
        log.info(
            "edge: %d captures, %d answered, %d dropped, %d failed",
            *(told.captured, told.answered, told.dropped, told.failed),
        )

    async def _work(self, captures: list[dict[str, np.ndarray]]) -> None:
        await self.node.became_ready.wait()
        async with asyncio.TaskGroup() as group:
            for number in range(self.options.in_flight):
                group.create_task(self._send(), name=f"sender {number}")
            await self._capture(itertools.cycle(captures))
            # From here on each sender ends as soon as the queue is empty.
            self._ended.set()
            self._filled.set()

    async def _capture(self, captures: Iterator[dict[str, np.ndarray]]) -> None:
        """Capture at the source's pace, however long inference takes."""
        loop = asyncio.get_running_loop()
        options, counters = self.options, self.counters
        began, rate = loop.time(), options.rate or USUAL_RATE
        for sequence, inputs in enumerate(captures):
            if options.count and sequence >= options.count:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began + sequence / rate):
                    await self._ended.wait()
            while self._queue.is_full and not self._ended.is_set():
                self._space.clear()
                await self._space.wait()
            if self._ended.is_set():
                return
            counters.captured += 1
            self._queue.add(Capture(sequence, inputs, time.monotonic()))
            self._count_dropped()
            self._filled.set()

    async def _send(self) -> None:
        node = self.node
        while True:
            while (capture := self._take()) is None:
                if self._ended.is_set() and not self._queue:
                    return
                self._filled.clear()
                await self._filled.wait()
            self._space.set()
            request = Request(capture.inputs, budget=self.node.config.budget, agent=node.id)
            try:
                result = await node.answerer.answer(
                    node.config.model_name, request, capture.sequence
                )
            finally:
                self._queue.ended()
                self._filled.set()
            self._count(result)
            self._deliver(capture, result)

    def _take(self) -> Capture | None:
        """The next capture to be sent, as long as the link has space."""
        send_rate = self.node.mesh.bulk.send_rate
        transfer = send_rate.transfer(time.monotonic())
        capture = self._queue.take(transfer, send_rate.round_trip, self._mesh_time.ewma)
        self._count_dropped()
        return capture

    def _count_dropped(self) -> None:
        dropped = self.counters.dropped = self._queue.dropped
        now = time.monotonic()
        if dropped > self._reported_dropped and now >= self._report_at:
            self._reported_dropped, self._report_at = dropped, now + REPORT_DROPPED_EVERY
            captured = self.counters.captured
            log.warning(
                "captures come faster than answers: %d of %d dropped so far, the oldest first",
                dropped,
                captured,
            )

    def _count(self, result: Result) -> None:
        if result.status is Status.OK:
            self.counters.answered += 1
            self.counters.degraded += result.degraded
            away = [hop for hop in result.hops if hop.stage > 0 and hop.node != self.node.id]
            spent = sum([hop.queue_us + hop.compute_us for hop in away])
            # Other nodes say these numbers, by clocks that may have been set.
            self._mesh_time.add(min(max(0, spent) / 1e6, result.latency))
        else:
            self.counters.failed += 1

    def _deliver(self, capture: Capture, result: Result) -> None:
        line = result_line(capture.sequence, result)
        line["age_ms"] = round((time.monotonic() - capture.at) * 1e3, 3)
        data = json.dumps(line, separators=(",", ":"))
        if self.options.sink == "stdout":
            sys.stdout.write(data + "\n")
            sys.stdout.flush()
            return
        self._results.publish(data.encode())


def result_line(sequence: int, result: Result, told: bool = True) -> dict[str, Any]:
    """The JSON document that a sink gets for one capture; times in milliseconds. told: whether the
    outputs are in it, as they are."""
    line: dict[str, Any] = {
        "sequence": sequence,
        "id": result.id,
        "status": str(result.status),
        "latency_ms": round(result.latency * 1e3, 3),
        "degraded": result.degraded,
        "attempt": result.attempt,
        "hops": [hop.as_json() for hop in result.hops],
    }
    if result.way:
        line |= {"way": result.way, "why": result.why}
    if result.status is Status.OK and told:
        line["outputs"] = {name: array.tolist() for name, array in result.outputs.items()}
    elif result.status is not Status.OK:
        line["error"] = result.message
    return line
