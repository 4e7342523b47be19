"""A requester in simulated time, and a stage that does what a test tells it to.

Only the server between them is imitated: each message takes `TRIP`, each way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from fake_stage import INFO, SUBJECTS, AnyDesk, outcome, routes_by_server
from support.fake_link import FakeLink

from swarm.errors import NoResponders, NotConnected, ResourceExhausted, Status, SwarmError
from swarm.link import LinkMessage
from swarm.requests.admission import USUAL_FOR
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import FAST
from swarm.requests.requester import Requester
from swarm.transport.lane import Publisher
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result, failure

KNOBS = AttemptConfig()
TRIP = 0.0002  # seconds
DEPTH = 8  # messages that the lane holds
FRESH = SUBJECTS.fresh(INFO.model, INFO.version, 1)
CANCEL = SUBJECTS.cancel(INFO.model, INFO.version)


def now() -> float:
    """The simulated time, in seconds."""
    return asyncio.get_running_loop().time()


def later(seconds: float, call: Callable[..., object], *args: object) -> None:
    asyncio.get_running_loop().call_later(seconds, call, *args)


class Server(FakeLink):
    """Carries what is sent in fast mode to the stage, and notes what is cancelled."""

    def __init__(self, desk: SimulatedDesk) -> None:
        super().__init__()
        self.connected = True
        self._connected_again.set()
        self._desk = desk
        self.cancelled: list[str] = []

    def carry(self, message: LinkMessage) -> None:
        if not self.connected:
            raise NotConnected("no connection")
        super().carry(message)
        data = bytes(message.data)
        if message.subject == CANCEL:
            self.cancelled.append(data.decode())
        elif message.subject == FRESH and self._desk.fast:
            later(TRIP, self._desk.stage.came, Message(fast=True), Features.decode(data))
        elif message.subject == FRESH:
            later(2 * TRIP, self.brings, message.reply, b"", b"NATS/1.0 503\r\n\r\n")

    def brings(self, reply: str, data: bytes, headers: bytes | None = None) -> None:
        """A message for the requester arrives, where there is a connection."""
        if self.connected:
            self.deliver(LinkMessage(reply, "", headers, data))

    def cut(self) -> None:
        """The connection is lost."""
        self.connected = False
        self._connected_again.clear()


class Lanes:
    """In place of `Publisher`: the lane of stage 1. exists: whether there is one. error: the answer
    to each message, where it is not None."""

    def __init__(self, desk: SimulatedDesk) -> None:
        self._desk = desk
        self.exists = True
        self.depth = DEPTH
        self.error: SwarmError | None = None
        self.held: set[str] = set()  # ids of messages that are not done
        self._known: set[str] = set()
        self.tries = 0

    def publish(self, subject: str, parts: Any, message_id: str, on_stored: Any) -> None:
        self.tries += 1
        if not self._desk.server.connected:
            raise NotConnected("no connection")
        later(2 * TRIP, self._acknowledge, on_stored, self._store(message_id, b"".join(parts)))

    def _store(self, message_id: str, data: bytes) -> SwarmError | None:
        if self.error is not None:
            return self.error
        if not self.exists:
            return NoResponders("no stream takes this lane's messages at present")
        if len(self.held) >= self.depth:
            return ResourceExhausted("the lane is full")
        if message_id not in self._known:
            self._known.add(message_id)
            self.held.add(message_id)
            message = Message(fast=False, id=message_id, lanes=self)
            later(TRIP, self._desk.stage.came, message, Features.decode(data))
        return None

    def _acknowledge(self, on_stored: Any, error: SwarmError | None) -> None:
        if self._desk.server.connected:  # else the word is lost
            on_stored(error, len(self._known))

    def lose(self) -> None:
        """The lane is deleted, with all that it held."""
        self.exists = False
        self.held.clear()
        self._known.clear()


@dataclass
class Message:
    """A message as the stage gets it."""

    fast: bool
    id: str = ""
    lanes: Lanes | None = None

    def done(self) -> None:
        """It need not come again."""
        if self.lanes is not None:
            self.lanes.held.discard(self.id)


Behaviour = Callable[["SimulatedStage", Message, Features], object]


class SimulatedStage:
    """Gets what is sent, by the lane or in fast mode; `behave` decides."""

    def __init__(self, desk: SimulatedDesk) -> None:
        self._desk = desk
        self.behave: Behaviour = answer_at_once
        self.seen: list[Features] = []

    @property
    def attempts(self) -> list[int]:
        return [features.attempt for features in self.seen]

    def came(self, message: Message, features: Features) -> None:
        self.seen.append(features)
        self.behave(self, message, features)

    def say(self, features: Features, data: bytes) -> None:
        later(TRIP, self._desk.server.brings, features.reply, data)

    def reply(self, features: Features, result: Result) -> None:
        self.say(features, b"".join(result.parts()))

    def fail(self, features: Features, status: Status, text: str = "no") -> None:
        self.say(features, b"".join(failure(features, status, text, 1, "fake")))


def answer_at_once(stage: SimulatedStage, message: Message, features: Features) -> None:
    stage.reply(features, outcome(features))
    message.done()


def answers_after(seconds: float) -> Behaviour:
    """A stage that takes so long, and says so."""

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        result = outcome(features)
        result.hops = (Hop(1, "fake", 1, int(seconds * 1e6), 1),)
        later(seconds, stage.reply, features, result)
        message.done()

    return behave


def silent(stage: SimulatedStage, message: Message, features: Features) -> None:
    """Takes it and never answers."""
    message.done()


class SimulatedDesk(AnyDesk):
    """In simulated time. fast: whether the stage listens in fast mode."""

    def __init__(self, config: AttemptConfig = KNOBS) -> None:
        self.fast = True
        self.stage = SimulatedStage(self)
        self.lanes = Lanes(self)
        self.server = Server(self)
        routes = routes_by_server(self.server, cast(Publisher, self.lanes), now)
        self.requester = Requester(routes, rng=random.Random(1), config=config)

    def begin(self, budget: float, value: float = 1.0, **options: Any) -> asyncio.Task[Result]:
        return asyncio.create_task(self.infer(budget, value, **options))

    async def learn(self) -> None:
        """How long fast mode takes as a rule."""
        for _ in range(30):
            await self.infer(10.0, delivery=FAST)
        await asyncio.sleep(USUAL_FOR)

    def is_idle(self) -> bool:
        return super().is_idle() and not self.server.expected
