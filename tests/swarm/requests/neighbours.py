"""A requester without a server, in simulated time: the sockets of its host and the lanes do what a
test says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from fake_stage import INFO, SUBJECTS
from simulated_desk import now
from support.fake_link import FakeLink
from support.waiting import eventually

from swarm.errors import Status, SwarmError
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Placement
from swarm.fleet.priorities import PRIMARY
from swarm.link import LinkMessage
from swarm.model import ModelInfo
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import Ask
from swarm.requests.requester import Requester
from swarm.samehost.compact import decode_features
from swarm.samehost.host_socket import LARGEST_MESSAGE, LIVING, HostSocket
from swarm.samehost.lending import Lender
from swarm.transport.lane import Publisher
from swarm.transport.routes import Routes
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result
from swarm.wire.tensors import Part

KNOBS = AttemptConfig()
FIRST = "_INBOX.first"  # the process that serves stage 1
LONG = 5.0  # seconds


class Host:
    """The sockets of this host, in place of `HostSocket`."""

    def __init__(self) -> None:
        self.sent: list[tuple[Features, str]] = []  # with its reply subject
        self.together: list[bool] = []  # whether a message was sent with others
        self.full = False
        self.asked: list[str] = []  # reply subjects of the question whether a process lives
        self.on_gone: list[Callable[[str], None]] = []

    def send(self, inbox: str, subject: str, parts: Sequence[Part], reply: str = "") -> bool:
        self.together.append(False)
        return self._send(subject, parts, reply)

    def post(self, inbox: str, subject: str, parts: Any, then: Any, reply: str = "") -> None:
        self.together.append(True)
        then(self._send(subject, parts, reply))

    def _send(self, subject: str, parts: Sequence[Part], reply: str) -> bool:
        if self.full or sum(map(len, parts)) > LARGEST_MESSAGE:
            return False
        if subject == LIVING:
            self.asked.append(reply)
        else:
            self.sent.append((decode_features(b"".join(parts)), reply))
        return True

    def end(self, inbox: str) -> None:
        """That process ends."""
        for callback in self.on_gone:
            callback(inbox)


class Lanes:
    """In place of `Publisher`: keeps messages, or refuses them with `error`, `at_once` or by a
    PubAck, or raises `defect`. slow: the PubAcks are left to the test, in `acks`."""

    def __init__(self) -> None:
        self.stored: list[Features] = []
        self.error: SwarmError | None = None
        self.at_once: SwarmError | None = None
        self.defect: Exception | None = None
        self.slow = False
        self.acks: list[Callable[[SwarmError | None, int], None]] = []

    def publish(self, subject: str, parts: Any, message_id: str, on_stored: Any) -> None:
        if (error := self.at_once or self.defect) is not None:
            raise error
        features = Features.decode(b"".join(parts))
        lane = SUBJECTS.features(features.model, features.version, 1, "any")
        assert (message_id, subject) == (features.message_id, lane)
        self.stored.append(features)
        if self.slow:
            self.acks.append(on_stored)
        else:
            on_stored(self.error, len(self.stored))


class NothingLarge:
    """In place of `Lender`, where no tensor is large."""

    host = "here"
    lent = 0


class Shop:
    """The requester, its host and its lanes."""

    def __init__(self, config: AttemptConfig = KNOBS) -> None:
        self.wire, self.host, self.lanes = FakeLink(), Host(), Lanes()
        self.wire.connected = True
        peer = StagePeer("n", PRIMARY, "here", False, FIRST)
        routes = Routes(
            self.wire,
            SUBJECTS,
            cast(Publisher, self.lanes),
            cast(Lender, NothingLarge()),
            cast(HostSocket, self.host),
            Placement("here", lambda info, stage: [peer]),
            lambda: None,
            clock=now,
        )
        self.requester = Requester(routes, rng=random.Random(1), config=config)
        self.tasks: list[asyncio.Task[Result]] = []

    async def ask(
        self, budget: float = LONG, info: ModelInfo = INFO, **options: Any
    ) -> asyncio.Task[Result]:
        """Ask, and let the request be sent."""
        inputs = {"x": np.ones((1, 4), np.float32)}
        ask = Ask(info, inputs, asyncio.get_running_loop().time() + budget, **options)
        self.tasks.append(asyncio.create_task(self.requester.infer(ask)))
        await asyncio.sleep(0)
        return self.tasks[-1]

    def say(self, word: bytes, number: int = -1) -> None:
        """The word of the first stage for a message that it was handed."""
        features, reply = self.host.sent[number]
        assert reply == features.reply, "the answer is the word"
        self.wire.deliver(LinkMessage(reply, "", None, word))

    def answer(self, number: int = -1, status: Status = Status.OK, us: int = 2) -> None:
        """Answer a message that was handed over."""
        self.answer_to(self.host.sent[number][0], status, us)

    def answer_to(self, features: Features, status: Status = Status.OK, us: int = 2) -> None:
        hops = (Hop(1, "n", 1, us, 1),)
        result = Result(
            features.id,
            features.model,
            features.version,
            status,
            outputs={},
            attempt=features.attempt,
            hops=hops,
        )
        self.wire.deliver(LinkMessage(features.reply, "", None, b"".join(result.parts())))

    async def stored(self, count: int = 1) -> list[Features]:
        """Wait until the lanes have so many messages."""
        await eventually(lambda: len(self.lanes.stored) >= count, within=LONG)
        return self.lanes.stored

    def is_idle(self) -> bool:
        """Whether nothing of any request is left."""
        inside = self.requester.admission(INFO).inside
        return self.requester.under_way == inside == 0 and not self.wire.expected
