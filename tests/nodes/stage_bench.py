"""A stage with fakes around it: what it is given, and what it sends."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from nodes.stage.jobs import StageOptions
from nodes.stage.outbox import Outbox
from nodes.stage.server import StageServer
from shards.errors import InputError, RunError
from shards.runtimes.runtime import CancelToken
from swarm.errors import SwarmError
from swarm.fleet.placement import Nearby
from swarm.lanes import REFUSED
from swarm.link import LinkMessage
from swarm.local.compact import decode_features, decode_result
from swarm.local.host_socket import LIVING
from swarm.local.lending import UNLENT, Lent
from swarm.model import ModelInfo, Spec, Stage
from swarm.shm import Claim
from swarm.subjects import Subjects
from swarm.wire.messages import Features, Result

LIMIT = 20.0  # seconds; only a hang gets there
SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo(
    "m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 0.01), Stage(2, SPEC, SPEC, 0.01)), batchable=True
)
POISON = 666.0


class FakeModel:
    """Adds one; fails on poison; `slow` seconds a run, unless cancelled."""

    batchable = True

    def __init__(self, compute_ms: float = 5.0, slow: float = 0.0) -> None:
        self.compute_ms = compute_ms
        self.slow = slow
        self.batches: list[int] = []
        self.error: Exception = RunError("poison")
        self.threads: list[int] = []

    def check(self, tensors: Any) -> None:
        if list(tensors) != ["x"]:
            raise InputError("x", "x", str(list(tensors)))

    def _wait(self, cancel: CancelToken | None) -> None:
        from shards.errors import RunTerminated

        until = time.monotonic() + self.slow
        while time.monotonic() < until:
            time.sleep(0.005)
            if cancel is not None and cancel.cancelled:
                raise RunTerminated("cancelled")

    def run(self, tensors: Any, cancel: CancelToken | None = None) -> dict[str, np.ndarray]:
        return self.run_batch([tensors], cancel)[0]

    def run_batch(
        self, requests: Any, cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]:
        self.batches.append(len(requests))
        self.threads.append(threading.get_ident())
        self._wait(cancel)
        if any((tensors["x"] == POISON).any() for tensors in requests):
            raise self.error
        return [{"x": tensors["x"] + 1} for tensors in requests]


class FakeLink:
    """Keeps what is published, by subject."""

    connected = True
    bursting = False

    def __init__(self) -> None:
        self.count = 0
        self.callback_errors = 0
        self.sent: list[tuple[str, bytes]] = []
        self.replies: list[str] = []
        self.error: SwarmError | None = None
        self.options = SimpleNamespace(inbox="_INBOX.node")
        self.callbacks: dict[str, Any] = {}
        self.expected: dict[str, Any] = {}
        self.on_down: list[Any] = []

    def subscribe(self, subject: str, callback: Any) -> int:
        self.callbacks[subject] = callback
        return 1

    def unsubscribe(self, sid: int) -> None:
        self.callbacks.clear()

    def publish(self, subject: str, data: Any = b"", reply: str = "", headers: bytes = b"") -> None:
        if self.error is not None:
            raise self.error
        self.replies.append(reply)
        self.sent.append((subject, data if isinstance(data, bytes) else b"".join(data)))

    def push(self) -> None:
        """All was sent at once."""

    def expect(self, callback: Any) -> str:
        self.count += 1
        reply = f"_INBOX.node.{self.count}"
        self.expected[reply] = callback
        return reply

    def forget(self, reply: str) -> None:
        self.expected.pop(reply, None)


class FakeDirect:
    """Keeps what is sent to nodes of this host, and what they are told."""

    def __init__(self, link: FakeLink) -> None:
        self.link = link
        self.full = False
        self.sent: list[tuple[str, Features, str]] = []  # inbox, message, reply
        self.told: list[tuple[str, bytes]] = []  # answers too
        self.posted: list[tuple[Any, bool]] = []
        self.on_gone: list[Any] = []
        self.asked: list[tuple[str, str]] = []  # inbox, reply: whether it lives
        self.gone: set[str] = set()
        self.lived: list[str] = []  # inboxes

    def heard(self, inbox: str, at: float) -> None:
        self.lived.append(inbox)

    def send(self, inbox: str, subject: str, parts: Any, reply: str = "") -> bool:
        if subject == LIVING:
            self.asked.append((inbox, reply))
            for callback in self.on_gone if inbox in self.gone else ():
                callback(inbox)
            return inbox not in self.gone
        if not self.full:
            self.sent.append((inbox, decode_features(b"".join(parts)), reply))
        return not self.full

    def post(self, inbox: str, subject: str, parts: Any, then: Any, reply: str = "") -> None:
        self.later(then, self.send(inbox, subject, parts, reply))

    def answer(self, reply: str, parts: Any, then: Any) -> None:
        if not self.full:
            self.told.append((reply, b"".join(parts)))
        self.later(then, not self.full)

    def later(self, then: Any, sent: bool) -> None:
        """At the end of a burst, or at once."""
        if self.link.bursting:
            self.posted.append((then, sent))
        else:
            then(sent)

    def flush(self) -> None:
        """The burst is over."""
        self.link.bursting = False
        while self.posted:
            then, sent = self.posted.pop(0)
            then(sent)

    def say(self, reply: str, word: bytes) -> None:
        """The node that a message was handed to says this of it."""
        if reply in self.link.expected:
            self.link.expected[reply](LinkMessage(reply, "", None, word))


class FakePublisher:
    """Stores, or refuses as often as it is told to; with `hold` it is not said before `release`."""

    def __init__(self) -> None:
        self.hold = False
        self.raises: Exception | None = None
        self.subjects: list[str] = []
        self._held: list[Any] = []
        self.stored: list[tuple[str, Features]] = []
        self.refusals: list[SwarmError] = []
        self.tries = 0

    def publish(self, subject: str, data: Any, message_id: str, on_stored: Any) -> None:
        self.tries += 1
        if self.raises is not None:
            raise self.raises
        self.subjects.append(subject)
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


class Unsent(Lent):
    """Says what was lent, but the message carries the bytes."""

    packed = None  # type: ignore[assignment]


class FakeClaims:
    """Shared memory of the host `h`; with `large`, everything is lent."""

    host = "h"

    def __init__(self) -> None:
        self.large = False
        self.lends = 0
        self.released: list[Claim] = []  # by this process, whose memory it is

    def wants(self, tensors: Any) -> bool:
        return self.large

    def lend(self, tensors: Any) -> Lent:
        if not self.large:
            return UNLENT
        self.lends += 1
        lent = {"none of these": Claim("h", "s", 0, 1, 2, 0, 0)}
        return Unsent(dict(tensors), self, lent)  # type: ignore[arg-type]

    def release(self, claim: Claim) -> bool:
        self.released.append(claim)
        return True

    def collect(self) -> None:
        """Nothing waits."""

    def give_back(self, tensors: Any, but: Any = ()) -> None:
        """They were never opened."""


class FakeLane:
    def __init__(self) -> None:
        self.kept: dict[int, FakeDelivery] = {}
        self.pending = 0
        self.paused = False
        self.asked_for_all = 0

    @property
    def in_hand(self) -> int:
        return len(self.kept)

    def messages(self) -> list[FakeDelivery]:
        return list(self.kept.values())

    def ask_for_all(self) -> None:
        self.pending, self.asked_for_all = 0, self.asked_for_all + self.pending

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def drain(self) -> None:
        self.paused = True


class FakeDelivery:
    direct = False

    def __init__(
        self,
        lane: FakeLane,
        data: bytes,
        age: float = 0.0,
        delivered: int = 1,
        fresh: bool = False,
    ) -> None:
        self.data = data
        self.reply = "$JS.ACK.x"
        self.received = time.monotonic_ns()
        self.age = age
        self.times_delivered = delivered
        self.pending = 0
        self.fresh = fresh
        self.ended = ""
        self.held_at = 0
        self._lane = lane
        lane.kept[id(self)] = self

    @property
    def settled(self) -> bool:
        return self.ended != ""

    def _end(self, how: str) -> None:
        self._lane.kept.pop(id(self), None)
        self.ended = self.ended or how

    def ack(self) -> bool:
        ours = not self.ended
        self._end("ack")
        return ours

    def nak(self, delay: float = 0.0) -> None:
        self._end("nak")

    def term(self) -> None:
        self._end("term")

    def withdraw(self) -> bool:
        return False

    def held(self, at_ns: int = 0) -> None:
        """Settled later, at another node's word."""
        self.held_at = at_ns or 1

    def unheld(self) -> None:
        """It is ours again."""
        self.held_at = 0


class Bench:
    def __init__(self, model: FakeModel, stage: int = 2, **options: Any) -> None:
        self.model = model
        self.link = FakeLink()
        self.publisher = FakePublisher()
        self.lane = FakeLane()
        self.number = 0
        self.stage = stage
        self.direct = FakeDirect(self.link)
        self.claims = FakeClaims()
        self.near = Nearby()  # where the next stage's nodes are
        settings: dict[str, Any] = {"max_batch": 8, "start_check": False} | options
        out = Outbox(
            self.link,  # type: ignore[arg-type]
            Subjects("t"),
            self.publisher,  # type: ignore[arg-type]
            INFO,
            stage,
            "n1",
            self.claims,  # type: ignore[arg-type]
            next_near=lambda: self.near,
            direct=self.direct,  # type: ignore[arg-type]
        )
        self.server = StageServer(
            self.link,  # type: ignore[arg-type]
            model,
            out,
            StageOptions(**settings),
        )
        self.server.lanes.append(self.lane)  # type: ignore[arg-type]

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

    def deliver(self, data: bytes, **delivery: Any) -> FakeDelivery:
        """Hand a message out, as a lane does."""
        made = FakeDelivery(self.lane, data, **delivery)
        self.server.delivered(made)  # type: ignore[arg-type]
        return made

    def send(self, value: float = 1.0, *, budget: float = 10.0, **more: Any) -> FakeDelivery:
        names = ("age", "delivered", "fresh")
        delivery = {key: more.pop(key) for key in names if key in more}
        return self.deliver(self.message(value, budget=budget, **more), **delivery)

    def answers(self) -> dict[str, Result]:
        """By request id; an id that was answered twice fails the test."""
        found: dict[str, Result] = {}
        for subject, data in self.link.sent + self.direct.told:
            if subject.startswith("_INBOX.r") and data != REFUSED:
                result = decode_result(data)
                assert result.id not in found, f"{result.id} was answered twice"
                found[result.id] = result
        return found

    @property
    def refused(self) -> list[str]:
        """The requests whose requesters were told that nobody here works on them."""
        told = self.link.sent + self.direct.told
        return [subject[len("_INBOX.") :] for subject, data in told if data == REFUSED]

    async def all_ended(self, *deliveries: FakeDelivery) -> None:
        async with asyncio.timeout(LIMIT):
            while not all(d.settled for d in deliveries):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
