"""A stage with a model, a server and neighbours that do as a test tells them."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from support.fake_link import FakeLink
from support.waiting import eventually

from nodes.stage.compute import StageOptions
from nodes.stage.server import NextLane, StageServer
from shards.errors import InputError, RunError, RunTerminated
from shards.runtimes.runtime import CancelToken
from swarm.clock import ServerClock
from swarm.errors import SwarmError
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Placement
from swarm.fleet.priorities import PRIMARY
from swarm.link import LinkMessage
from swarm.model import ModelInfo, Spec, Stage
from swarm.samehost.compact import decode_features, decode_result
from swarm.samehost.host_socket import LIVING, HostSocket
from swarm.samehost.lending import Lender
from swarm.samehost.memory import MIN_BYTES
from swarm.subjects import Subjects
from swarm.transport.handover.acks import NAK, VERBS
from swarm.transport.routes import Routes
from swarm.transport.source import SourceOptions
from swarm.wire.messages import Features, Result

LIMIT = 30.0  # seconds; only a hang gets there
SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo(
    "m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 0.01), Stage(2, SPEC, SPEC, 0.01)), batchable=True
)
LARGE = {"x": np.zeros((MIN_BYTES // 16, 4), np.float32)}  # lies in shared memory
LATE = 0.1  # seconds; longer than a lone short parcel is waited for
POISON = 666.0
NEXT = "_INBOX.next"  # the process that serves the next stage
BEFORE = "_INBOX.before.7"  # where the stage before waits for a word


class FakeModel:
    """Adds one; fails on poison; `slow` seconds a run, unless cancelled.

    With `gate`, a run in the thread waits for it to be set; `begun` is set when a run begins."""

    batchable = True
    weights_version = 0

    def __init__(self, compute_ms: float = 5.0, slow: float = 0.0) -> None:
        self.compute_ms = compute_ms
        self.slow = slow
        self.gate: threading.Event | None = None
        self.begun = threading.Event()
        self.batches: list[int] = []
        self.error: Exception = RunError("poison")
        self.threads: list[int] = []
        self.compute: Callable[[np.ndarray], np.ndarray] = lambda array: array + 1

    def check(self, tensors: Any) -> None:
        if list(tensors) != ["x"]:
            raise InputError("x", "x", str(list(tensors)))

    def _wait(self, cancel: CancelToken | None) -> None:
        until = time.monotonic() + self.slow
        while time.monotonic() < until or (self.gate is not None and not self.gate.is_set()):
            time.sleep(0.002)  # a thread cannot wait for its gate and for a cancel at once
            if cancel is not None and cancel.cancelled:
                raise RunTerminated("cancelled")

    def run(self, tensors: Any, cancel: CancelToken | None = None) -> dict[str, np.ndarray]:
        self.check(tensors)
        return self.run_batch([tensors], cancel)[0]

    def run_batch(
        self, requests: Any, cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]:
        self.batches.append(len(requests))
        self.threads.append(threading.get_ident())
        self.begun.set()
        self._wait(cancel)
        if any((tensors["x"] == POISON).any() for tensors in requests):
            raise self.error
        return [{"x": self.compute(tensors["x"])} for tensors in requests]


class StageLink(FakeLink):
    """Plays the server: answers what a lane asks of JetStream, and keeps what is published."""

    bursting = False

    def __init__(self) -> None:
        self.began = time.monotonic_ns()  # 1970 by its clock
        self.is_deaf = False  # it says no more of a consumer that was made
        self.ahead = 0.0  # seconds by which its clock was set since, and what it stamps
        self.asked = 0  # questions about a consumer that was made
        self._made: dict[str, Any] = {}  # configurations of consumers, by name
        self.pulls: dict[str, list[int]] = {}  # messages asked for, by consumer
        self.inboxes: dict[str, str] = {}  # where they are awaited
        self.callbacks: dict[str, Any] = {}
        super().__init__("_INBOX.node")
        self.connected = True

    def subscribe(self, subject: str, callback: Any, queue: str = "") -> int:
        self.callbacks[subject] = callback
        return super().subscribe(subject, callback, queue)

    def carry(self, message: LinkMessage) -> None:
        if not message.subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            super().carry(message)
        elif self.error is not None:
            raise self.error
        else:
            consumer = message.subject.rpartition(".")[2].split("=", 2)[2]  # behind mesh and model
            self.inboxes[consumer] = message.reply
            self.pulls.setdefault(consumer, []).append(json.loads(message.data)["batch"])

    async def request(
        self,
        subject: str,
        data: Sequence[Any] | bytes = b"",
        timeout: float = 2.0,
        headers: bytes = b"",
        *,
        from_server: bool = False,
    ) -> LinkMessage:
        """As the server answers who makes a stream or a consumer; there is none before."""
        if not data and (made := self._made.get(subject.rpartition(".")[2])) is not None:
            self.asked += 1
            await asyncio.sleep(timeout if self.is_deaf else 0)
            if self.is_deaf:
                raise TimeoutError
            answer = {"config": made, "ts": self.stamp()}
            return LinkMessage(subject, "", None, json.dumps(answer).encode())
        if not data:
            error = {"code": 404, "err_code": 10014, "description": "consumer not found"}
            return LinkMessage(subject, "", None, json.dumps({"error": error}).encode())
        asked = json.loads(data if isinstance(data, bytes) else b"".join(data))
        answer = {"config": asked.get("config", asked)}
        if "durable_name" in answer["config"]:
            self._made[answer["config"]["durable_name"]] = answer["config"]
        return LinkMessage(subject, "", None, json.dumps(answer).encode())

    def now(self) -> int:
        """Nanoseconds since 1970 by its clock."""
        return time.monotonic_ns() - self.began + int(self.ahead * 1e9)

    def stamp(self) -> str:
        """The same as RFC 3339 has it."""
        whole, rest = divmod(self.now(), 10**9)
        return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"

    def sync(self) -> asyncio.Future[None]:
        """All was read at once."""
        read = asyncio.get_running_loop().create_future()
        read.set_result(None)
        return read

    def push(self) -> None:
        """All was sent at once."""

    def verb(self, reply: str) -> str:
        """How the message with that acknowledgement subject was settled, if it was."""
        for subject, body in self.sent:
            if subject == reply and not body.startswith(b"+WPI"):
                return {b"+ACK": "ack", b"+NXT": "ack", b"-NAK": "nak", b"+TER": "term"}[body[:4]]
        return ""


class FakeSocket(HostSocket):
    """Keeps what is sent to processes of this host, and what they are told."""

    def __init__(self, link: StageLink) -> None:
        super().__init__(link)
        self.link = link
        self.full = False
        self.lives = False  # it answers the question whether it lives
        self.handed: list[tuple[str, Features, str]] = []  # inbox, message, reply
        self.told: list[tuple[str, bytes]] = []  # answers too
        self.asked: list[tuple[str, str]] = []  # inbox, reply: whether it lives
        self.listeners: dict[str, Any] = {}
        self._posted: list[tuple[Any, bool]] = []

    def listen(self, subject: str, callback: Any) -> None:
        self.listeners[subject] = callback

    def forget(self, subject: str) -> None:
        self.listeners.pop(subject, None)

    def send(self, inbox: str, subject: str, parts: Any, reply: str = "") -> bool:
        if subject == LIVING:
            self.asked.append((inbox, reply))
            if self.lives:
                asyncio.get_running_loop().call_soon(self.say, reply, b"")
            return True
        if not self.full:
            self.handed.append((inbox, decode_features(b"".join(parts)), reply))
        return not self.full

    def post(self, inbox: str, subject: str, parts: Any, then: Any, reply: str = "") -> None:
        self._later(then, self.send(inbox, subject, parts, reply))

    def answer(self, reply: str, parts: Any, then: Any) -> None:
        if not self.full:
            self.told.append((reply, b"".join(parts)))
        self._later(then, not self.full)

    def _later(self, then: Any, sent: bool) -> None:
        """At the end of a burst, or at once."""
        if self.link.bursting:
            self._posted.append((then, sent))
        else:
            then(sent)

    def flush(self) -> None:
        """The burst is over."""
        self.link.bursting = False
        while self._posted:
            then, sent = self._posted.pop(0)
            then(sent)

    def say(self, reply: str, word: bytes) -> None:
        """The process that a message was handed to says this of it."""
        self.link.deliver(LinkMessage(reply, "", None, word))


class FakePublisher:
    """Stores, or refuses as often as it is told to; with `hold` it is not said before `release`."""

    def __init__(self) -> None:
        self.hold = False
        self.raises: Exception | None = None
        self.stored: list[tuple[str, Features]] = []
        self.refusals: list[SwarmError] = []
        self.tries = 0
        self._held: list[Any] = []

    def publish(self, subject: str, data: Any, message_id: str, on_stored: Any) -> None:
        self.tries += 1
        if self.raises is not None:
            raise self.raises
        error = self.refusals.pop(0) if self.refusals else None
        if error is None:
            self.stored.append((subject, Features.decode(b"".join(data))))
        if self.hold:
            self._held.append(on_stored)
        else:
            asyncio.get_running_loop().call_soon(on_stored, error, 1)

    def release(self, error: SwarmError | None) -> None:
        """Tell what was held that it was stored, or not."""
        while self._held:
            self._held.pop()(error, 1)


class FromLane:
    """A message as a lane handed it out."""

    def __init__(self, link: StageLink, reply: str) -> None:
        self._link = link
        self.reply = reply

    @property
    def ended(self) -> str:
        """`ack`, `nak` or `term`; "" while it is in hand."""
        return self._link.verb(self.reply)


def clumsy(info: ModelInfo, stage: int, features: Features) -> str:
    """A routing policy that raises for one request."""
    if features.id == "r1":
        raise ValueError("a defect of a policy")
    return "any"


class Bench:
    """Made by `async with`."""

    def __init__(
        self,
        model: FakeModel,
        stage: int = 2,
        next_lane: NextLane | None = None,
        credit: int = 4,
        info: ModelInfo = INFO,
        on_behind: Callable[[int], None] = lambda weights: None,
        beside: Callable[[int], StageServer | None] = lambda stage: None,
        priority: int = PRIMARY,
        **options: Any,
    ) -> None:
        self.model = model
        self.link = StageLink()
        self.publisher = FakePublisher()
        self.number = 0
        self.sequence = 0
        self.stage = stage
        self.socket = FakeSocket(self.link)
        self.lender = Lender(self.link, f"test-{secrets.token_hex(6)}")
        self.peers: list[StagePeer] = []  # of the next stage
        # A host of "" would mean that this machine shares no memory at all.
        self.host = self.lender.host
        self.placement = Placement(self.host, lambda info, stage: self.peers)
        clock = ServerClock()
        hour_ago = self.link.began - 3600 * 10**9
        clock.sample(hour_ago, hour_ago, "1969-12-31T23:00:00Z")
        routes = Routes(
            self.link,
            Subjects("t"),
            self.publisher,  # type: ignore[arg-type]
            self.lender,
            self.socket,
            self.placement,
            lambda: None,
        )
        settings: dict[str, Any] = {"max_batch": 8, "start_check": False} | options
        source = SourceOptions(priority, credit=credit, most_credit=credit, clock=clock)
        self.server = StageServer(
            routes,
            info,
            stage,
            "n1",
            model,
            source,
            StageOptions(**settings),
            next_lane,
            on_behind=on_behind,
            beside=beside,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Bench:
        self._task = asyncio.get_running_loop().create_task(self.server.source.run())
        await self.server.source.ready(LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.model.gate is not None:
            self.model.gate.set()
        self.server.close()
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.lender.close(0.0)

    @property
    def lent(self) -> int:
        """Tensors that lie in shared memory for others."""
        return self.lender.stats.outstanding

    @property
    def counters(self) -> Any:
        return self.server.stats.counters

    # --- the next stage -------------------------------------------------------------------

    def next_is_here(self, inbox: str = NEXT, node: str = "n2") -> None:
        """The next stage's only primary is a process of this host."""
        self.peers[:] = [StagePeer(node, PRIMARY, self.host, False, inbox)]
        self.placement.forget()

    # --- what comes -------------------------------------------------------------------------

    def message(self, value: float = 1.0, *, budget: float = 10.0, **more: Any) -> bytes:
        """The next request, as it comes."""
        self.number += 1
        features = Features(
            f"r{self.number}",
            "m",
            "1",
            more.pop("stage", self.stage),
            f"_INBOX.r{self.number}",
            int(budget * 1e6),
            more.pop("tensors", {"x": np.full((1, 4), value, np.float32)}),
            **more,
        )
        return b"".join(features.parts())

    def deliver(
        self, data: bytes, age: float = 0.0, delivered: int = 1, pending: int = 0, lane: str = "any"
    ) -> FromLane:
        """Hand a message out, as a lane does; `pending` more wait there."""
        self.sequence += 1
        stored = self.link.now() - int(age * 1e9)
        number = self.sequence
        reply = f"$JS.ACK.S.{lane}.{delivered}.{number}.{number}.{stored}.{pending}"
        inbox = self.link.inboxes[f"stage{self.server.stage}={lane}"]
        subject = f"swarm.t.features.m.1.{self.server.stage}.{lane}"
        self.link.callbacks[inbox](LinkMessage(subject, reply, None, data))
        return FromLane(self.link, reply)

    def send(self, value: float = 1.0, *, budget: float = 10.0, **more: Any) -> FromLane:
        """The next request comes by the lane."""
        names = ("age", "delivered", "pending", "lane")
        delivery = {key: more.pop(key) for key in names if key in more}
        return self.deliver(self.message(value, budget=budget, **more), **delivery)

    def fast(self, data: bytes) -> None:
        """A message comes in fast mode, by the server."""
        subject = f"swarm.t.fresh.m.1.{self.server.stage}"
        self.link.callbacks[subject](LinkMessage(subject, "", None, data))

    def hand(self, data: bytes, ago: float = 0.0, reply: str = BEFORE) -> bytes:
        """A process of this host hands a message over, `ago` seconds ago."""
        subject = f"swarm.t.features.m.1.{self.server.stage}.any"
        self.socket.listeners[subject](data, time.monotonic_ns() - int(ago * 1e9), reply)
        return data

    def from_requester(self, data: bytes, ago: float = 0.0) -> bytes:
        """A requester waits for the word where it waits for the answer."""
        return self.hand(data, ago, f"_INBOX.r{self.number}")

    # --- what goes --------------------------------------------------------------------------

    def answers(self) -> dict[str, Result]:
        """By request id; an id that was answered twice fails the test."""
        found: dict[str, Result] = {}
        for subject, data in self.link.sent + self.socket.told:
            if subject.startswith("_INBOX.r") and data not in VERBS:
                result = decode_result(data)
                assert result.id not in found, f"{result.id} was answered twice"
                found[result.id] = result
        return found

    @property
    def refused(self) -> list[str]:
        """The requests whose requesters were told that nobody here works on them."""
        told = self.link.sent + self.socket.told
        return [subject[len("_INBOX.") :] for subject, data in told if data == NAK]

    async def all_ended(self, *deliveries: FromLane) -> list[str]:
        """How the lane's messages were settled, when all are."""
        await eventually(lambda: all(delivery.ended for delivery in deliveries))
        return [delivery.ended for delivery in deliveries]
