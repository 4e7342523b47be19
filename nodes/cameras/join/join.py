"""A node that joins views: hears edges' results, pairs them, asks the fusion model, publishes.

results.cam-1 ─┐
results.cam-2 ─┴► pairing ─► fusion model in the mesh ─► sink
                          └► `--match`: boxes of one object ─┘
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from nodes.cameras.join.objects import joined, plane_of
from nodes.cameras.join.pairing import Moment, Pairing, step
from nodes.cameras.join.views import fused_input, view_of
from nodes.cameras.settings import JoinOptions
from nodes.config import NodeConfig
from nodes.edge.edge import result_line
from nodes.edge.kept_results import KeptResults
from nodes.life.node import Node
from swarm.errors import InvalidArgument, Status, SwarmError
from swarm.link import LinkMessage
from swarm.wire.messages import Request

log = logging.getLogger("swarm.join")
MOST_SAID = 32  # different faults


@dataclass(slots=True)
class JoinCounters:
    """Moments since the start. whole: with each edge's view. dropped: the mesh was too slow."""

    whole: int = 0
    partial: int = 0
    dropped: int = 0
    answered: int = 0
    failed: int = 0

    def status(self) -> dict[str, Any]:
        """The field that a join adds to its node's status documents."""
        return {"join": asdict(self)}


class Join:
    """`run(stop)`: the node's life, with the joining beside it."""

    def __init__(self, node: Node, config: NodeConfig, counters: JoinCounters) -> None:
        self.node = node
        self.counters = counters
        self._options = config.of(JoinOptions)
        self._sink = config.edge.sink
        self._in_flight = config.edge.in_flight
        self._results = KeptResults(node.mesh.link, node.mesh.subjects.results(self._sink))
        options = config.of(JoinOptions)
        self._pairing = Pairing(options.edges, options.within, options.wait)
        self._matches = bool(options.match)
        self._plane = plane_of(options.match, options.edges) if options.match else None
        self._asking: set[asyncio.Task[None]] = set()
        self._came = asyncio.Event()
        self._sequence = 0
        self._said: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Ends on `stop`, with the node. Raises `SwarmError`."""
        async with asyncio.TaskGroup() as group:
            life = group.create_task(self.node.run(stop), name="node")
            work = group.create_task(self._work(group), name="join")
            await asyncio.wait({life, work}, return_when=asyncio.FIRST_COMPLETED)
            work.cancel()

    async def _work(self, group: asyncio.TaskGroup) -> None:
        await self.node.became_ready.wait()
        link, subjects = self.node.mesh.link, self.node.mesh.subjects
        numbers = [
            link.subscribe(subjects.results(edge), partial(self._hear, group, edge))
            for edge in self._pairing.edges
        ]
        try:
            while True:
                due = self._pairing.due
                within = None if due is None else max(0.0, due - time.monotonic())
                self._came.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        await self._came.wait()
                self._step(group, None)
        finally:
            for number in numbers:
                link.unsubscribe(number)

    def _hear(self, group: asyncio.TaskGroup, edge: str, message: LinkMessage) -> None:
        try:
            view = view_of(edge, bytes(message.data), time.monotonic())
        except InvalidArgument as error:
            self._say(str(error))
            return
        if view is not None:
            self._step(group, view)
            self._came.set()

    def _step(self, group: asyncio.TaskGroup, view: Any) -> None:
        self._pairing, moments = step(self._pairing, view, time.monotonic())
        for moment in moments:
            if self._matches:
                self._match(moment)
                continue
            if len(self._asking) >= self._in_flight:
                self.counters.dropped += 1
                continue
            self._count(moment)
            task = group.create_task(self._fuse(moment, self._sequence), name="moment")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _count(self, moment: Moment) -> None:
        self._sequence += 1
        is_whole = len(moment) == len(self._pairing.edges)
        self.counters.whole += is_whole
        self.counters.partial += not is_whole

    def _match(self, moment: Moment) -> None:
        """Tell the objects of a moment, which needs nobody else."""
        self._count(moment)
        try:
            objects = joined(self._pairing.edges, moment, self._plane)
        except InvalidArgument as error:
            self.counters.failed += 1
            self._say(str(error))
            return
        self.counters.answered += 1
        line = {"sequence": self._sequence, "status": str(Status.OK), "objects": objects}
        self._tell(moment, line)

    async def _fuse(self, moment: Moment, sequence: int) -> None:
        node, name = self.node, self.node.config.model_name
        try:
            version = node.config.version or await node.mesh.catalog.version_for(
                name, node.id, "", node.id
            )
            info = await node.mesh.registry.info(name, version)
            if len(info.inputs) != 1:
                raise InvalidArgument(f"{name}@{version} takes {len(info.inputs)} inputs, not one")
            spec = info.inputs[0]
            inputs = {spec.name: fused_input(self._pairing.edges, moment, spec.shape)}
        except SwarmError as error:
            self.counters.failed += 1
            self._say(str(error))
            return
        request = Request(inputs, budget=node.config.budget, agent=node.id)
        result = await node.answerer.answer(name, request, sequence)
        if result.status is Status.OK:
            self.counters.answered += 1
        else:
            self.counters.failed += 1
            self._say(f"a moment has no answer: {result.status}: {result.message}")
        self._tell(moment, result_line(sequence, result))

    def _tell(self, moment: Moment, line: dict[str, Any]) -> None:
        """Hand over a moment's line, with whose views it is of."""
        captured = [view.captured for view in moment.values()]
        line["views"] = {edge: view.result.get("sequence") for edge, view in moment.items()}
        line["missing"] = [edge for edge in self._pairing.edges if edge not in moment]
        line["spread_ms"] = round((max(captured) - min(captured)) * 1e3, 3)
        line["age_ms"] = round((time.monotonic() - min(captured)) * 1e3, 3)
        data = json.dumps(line, separators=(",", ":"))
        if self._sink == "stdout":
            sys.stdout.write(data + "\n")
            sys.stdout.flush()
        else:
            self._results.publish(data.encode())

    def _say(self, text: str) -> None:
        """A fault of many results: said once."""
        if text not in self._said and len(self._said) < MOST_SAID:
            self._said.add(text)
            log.warning("%s", text)
