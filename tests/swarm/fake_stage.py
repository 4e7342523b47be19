"""A requester on a real server, and a stage that does what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from real_server import Links
from swarm.lanes.fresh import FreshDelivery, FreshLane

from swarm.errors import Status
from swarm.lanes import Lane, LaneMessage, LaneOptions, Publisher, consumer_config, ensure_lanes
from swarm.link import Link
from swarm.model import ModelInfo, Spec, Stage
from swarm.requests.request import CORE, Ask
from swarm.requests.requester import Requester
from swarm.subjects import Subjects
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result, failure

SUBJECTS = Subjects("test")
SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))

Behaviour = Callable[["FakeStage", Any, Features], None]


class FakeStage:
    """Consumes the lane (or the fast mode's queue group) of stage 1; `behave` decides."""

    def __init__(self, link: Link, options: LaneOptions) -> None:
        self.link = link
        self.options = options
        self.seen: list[Features] = []
        self.behave: Behaviour = answer_at_once
        config = consumer_config(SUBJECTS, "m", "1", 1, options)
        stream = SUBJECTS.stream("m", "1")
        self.lane = Lane(link, stream, config, self._provision, self._delivered, credit=32)
        self.fresh = FreshLane(link, SUBJECTS.fresh("m", "1", 1), self._delivered)

    async def _provision(self) -> None:
        await ensure_lanes(self.link, SUBJECTS, "m", "1", self.options)

    def _delivered(self, delivery: LaneMessage | FreshDelivery) -> None:
        features = Features.decode(delivery.data)
        self.seen.append(features)
        self.behave(self, delivery, features)

    def reply(self, features: Features, result: Result) -> None:
        self.link.publish(features.reply, result.parts())

    def fail(self, features: Features, status: Status, text: str = "no") -> None:
        self.link.publish(features.reply, failure(features, status, text, 1, "fake"))

    @property
    def attempts(self) -> list[int]:
        return [features.attempt for features in self.seen]


def outcome(features: Features, node: str = "fake", request_id: str = "") -> Result:
    """What a good stage answers: twice the input."""
    outputs = {"x": features.tensors["x"] * 2}
    hops = (Hop(1, node, 1, 2, 1),)
    return Result(
        request_id or features.id, "m", "1", outputs=outputs, attempt=features.attempt, hops=hops
    )


def answer_at_once(stage: FakeStage, delivery: Any, features: Features) -> None:
    stage.reply(features, outcome(features))
    delivery.ack()


def silent(stage: FakeStage, delivery: Any, features: Features) -> None:
    """Takes it and never answers."""
    delivery.ack()


class Desk:
    """A requester with its stage."""

    def __init__(self, links: Links, url: str, options: LaneOptions) -> None:
        self._links = links
        self._url = url
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self.stage: FakeStage
        self.requester: Requester

    async def open(self, *, lane: bool = True, fresh: bool = False) -> Desk:
        server_side = await self._links.connect(self._url)
        client_side = await self._links.connect(self._url)
        self.stage = FakeStage(server_side, self._options)
        if lane:
            self._tasks.append(asyncio.get_running_loop().create_task(self.stage.lane.run()))
            await self.stage.lane.ready(10.0)
        if fresh:
            self.stage.fresh.open()
        await server_side.flush()
        self.link = client_side
        self.requester = Requester(client_side, SUBJECTS, Publisher(client_side))
        return self

    def ask(self, budget: float, value: float = 1.0, **options: Any) -> Ask:
        inputs = {"x": np.full((1, 4), value, np.float32)}
        deadline = asyncio.get_running_loop().time() + budget
        return Ask(INFO, inputs, deadline, **options)

    async def infer(self, budget: float, value: float = 1.0, **options: Any) -> Result:
        return await self.requester.infer(self.ask(budget, value, **options))

    async def learn(self) -> None:
        """How long fast mode takes as a rule."""
        for _ in range(30):
            await self.infer(10.0, delivery=CORE)

    def idle(self) -> bool:
        """Nothing of any request is left behind."""
        requester, gate = self.requester, self.requester.gate(INFO)
        return not requester._asks and gate.inside == 0

    async def close(self) -> None:
        self.requester.close()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        assert not failures, f"the stage's lane ended by an exception: {failures}"
