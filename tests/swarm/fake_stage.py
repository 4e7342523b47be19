"""A requester on a real server, and a stage that does what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from real_server import Links

from swarm.errors import Status
from swarm.fleet.placement import Placement
from swarm.link import Link
from swarm.model import ModelInfo, Spec, Stage
from swarm.requests.admission import ModelAdmission
from swarm.requests.attempts import DEFAULTS, AttemptConfig
from swarm.requests.request import Ask
from swarm.requests.requester import Requester
from swarm.samehost.host_socket import HostSocket
from swarm.samehost.lending import Lender
from swarm.subjects import Subjects
from swarm.transport.fast import PRIMARIES, FastMessage, FastQueue
from swarm.transport.lane import (
    Lane,
    LaneMessage,
    LaneOptions,
    Publisher,
    consumer_config,
    ensure_lanes,
)
from swarm.transport.routes import Routes
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result, failure

SUBJECTS = Subjects("test")
SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))

Message = LaneMessage | FastMessage
Behaviour = Callable[["FakeStage", Message, Features], None]


def is_fast(message: Message) -> bool:
    """Whether a message came in fast mode."""
    return isinstance(message, FastMessage)


def take(message: Message) -> None:
    """It need not come again."""
    if isinstance(message, LaneMessage):
        message.ack()


def routes_by_server(
    link: Link,
    publisher: Publisher | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Routes:
    """The routes of a process without the short cuts of its host."""
    return Routes(
        link,
        SUBJECTS,
        publisher or Publisher(link),
        Lender(link, "test", enabled=False),
        HostSocket(link),
        Placement("", lambda info, stage: ()),
        lambda: None,
        clock=clock,
    )


class FakeStage:
    """Consumes the lane of stage 1, and its fast queue once that is opened; `behave` decides."""

    def __init__(self, link: Link, options: LaneOptions) -> None:
        self.link = link
        self.options = options
        self.seen: list[Features] = []
        self.behave: Behaviour = answer_at_once
        config = consumer_config(SUBJECTS, "m", "1", 1, options)
        stream = SUBJECTS.stream("m", "1", 1)
        self.lane = Lane(link, stream, config, self._provision, self._came, credit=32)
        subject = SUBJECTS.fresh("m", "1", 1)
        self.fast = FastQueue(link, HostSocket(link), subject, PRIMARIES, self._came)

    async def _provision(self) -> None:
        await ensure_lanes(self.link, SUBJECTS, "m", "1", 1, self.options)

    def _came(self, message: Message) -> None:
        features = Features.decode(message.data)
        self.seen.append(features)
        self.behave(self, message, features)

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


def answer_at_once(stage: FakeStage, message: Message, features: Features) -> None:
    stage.reply(features, outcome(features))
    take(message)


def silent(stage: FakeStage, message: Message, features: Features) -> None:
    """Takes it and never answers."""
    take(message)


class AnyDesk:
    """A requester with its stage, whatever lies between them."""

    requester: Requester

    @property
    def admission(self) -> ModelAdmission:
        return self.requester.admission(INFO)

    def ask(self, budget: float, value: float = 1.0, **options: Any) -> Ask:
        inputs = {"x": np.full((1, 4), value, np.float32)}
        deadline = asyncio.get_running_loop().time() + budget
        return Ask(INFO, inputs, deadline, **options)

    async def infer(self, budget: float, value: float = 1.0, **options: Any) -> Result:
        return await self.requester.infer(self.ask(budget, value, **options))

    def is_idle(self) -> bool:
        """Whether nothing of any request is left behind."""
        return self.requester.under_way == 0 and self.admission.inside == 0


class Desk(AnyDesk):
    """On a real server."""

    stage: FakeStage

    def __init__(self, links: Links, url: str, options: LaneOptions) -> None:
        self._links = links
        self._url = url
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []

    async def open(
        self, *, lane: bool = True, fast: bool = False, config: AttemptConfig = DEFAULTS
    ) -> Desk:
        server_side = await self._links.connect(self._url)
        client_side = await self._links.connect(self._url)
        self.stage = FakeStage(server_side, self._options)
        if lane:
            self._tasks.append(asyncio.get_running_loop().create_task(self.stage.lane.run()))
            await self.stage.lane.ready(10.0)
        if fast:
            self.stage.fast.open()
        await server_side.flush()
        self.link = client_side
        self.requester = Requester(routes_by_server(client_side), config=config)
        return self

    async def close(self) -> None:
        self.requester.close()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        assert not failures, f"the stage's lane ended by an exception: {failures}"
