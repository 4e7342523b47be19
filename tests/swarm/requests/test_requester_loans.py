"""Memory that a requester lends for a message that reaches nobody comes back at once."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_stage import INFO, SUBJECTS
from nowhere import Wire
from real_server import eventually

from swarm.errors import (
    InvalidArgument,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.placement import Near
from swarm.lanes import Publisher
from swarm.link import LinkMessage, gather
from swarm.local.compact import decode_features
from swarm.local.host_socket import HostSocket
from swarm.local.lending import Lender
from swarm.requests.request import CORE, DURABLE, Ask
from swarm.requests.requester import Requester
from swarm.shm import MIN_BYTES, sweep, unavailable
from swarm.wire.messages import Features, Result, result_parts
from swarm.wire.tensors import Part

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

BIG = np.zeros((1, MIN_BYTES // 4), np.float32)
LONG = 5.0  # seconds; only a broken promise gets there


class Server(Wire):
    """Takes messages, or refuses them with `error`; `asked` are those for stage 1."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Features] = []
        self.tries = 0

    def publish(
        self,
        subject: str,
        data: Sequence[Part] | bytes = b"",
        reply: str = "",
        headers: bytes = b"",
    ) -> None:
        self.tries += 1
        super().publish(subject, data, reply, headers)
        if not subject.startswith(f"{SUBJECTS.root}.cancel."):
            self.asked.append(Features.decode(data if isinstance(data, bytes) else b"".join(data)))

    def answer(self, features: Features, status: Status = Status.OK) -> None:
        result = Result(features.id, INFO.model, INFO.version, status=status)
        data = b"".join(result_parts(result, []))
        self.deliver(LinkMessage(features.reply, "", None, data))


class Neighbour:
    """The sockets of this host: whatever is sent is taken."""

    def __init__(self) -> None:
        self.taken: list[Features] = []
        self.on_gone: list[Any] = []

    def send(self, inbox: str, subject: str, parts: Sequence[Part], reply: str = "") -> bool:
        self.taken.append(decode_features(b"".join(parts)))
        return True


class Asker:
    """A requester whose stage 1 shares its memory."""

    def __init__(self, wire: Server, direct: Any = None) -> None:
        self.mesh = f"test-{secrets.token_hex(6)}"
        self.wire = wire
        self.lender = Lender(self.wire, self.mesh)
        self.near = Near(shared=True)
        self.requester = Requester(
            self.wire,
            SUBJECTS,
            Publisher(self.wire),
            self.lender,
            lambda *_: self.near,
            direct,
        )

    async def infer(self, budget: float = 0.1, **options: Any) -> Result:
        deadline = asyncio.get_running_loop().time() + budget
        inputs = options.pop("inputs", {"x": BIG})
        return await self.requester.infer(Ask(INFO, inputs, deadline, **options))

    async def ask(self, budget: float = LONG, **options: Any) -> asyncio.Task[Result]:
        """Ask, and let the first attempt be sent."""
        asking = asyncio.create_task(self.infer(budget, **options))
        await asyncio.sleep(0)
        return asking

    @property
    def counts(self) -> tuple[int, int]:
        """How many tensors were ever lent, and how many still are."""
        stats = self.lender.stats
        return stats.put, stats.outstanding

    async def close(self) -> None:
        self.requester.close()
        await self.lender.close(0.0)
        sweep(self.mesh, grace=0.0)  # a ring that is still lent is left to those who live


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    made = Asker(Server())
    yield made
    await made.close()


@pytest.fixture
async def neighbour() -> AsyncIterator[tuple[Asker, Neighbour]]:
    """A requester whose stage 1 takes what is handed over."""
    there = Neighbour()
    made = Asker(Server(), there)
    made.near = Near(shared=True, inboxes={"any": "_INBOX.first"})
    made.wire.connected = True
    yield made, there
    await made.close()


@pytest.fixture
async def bursting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Asker, HostSocket]]:
    """A requester with a socket on this host, to which several messages come at once: until
    `gather.end()`, however slow the machine is."""
    monkeypatch.setattr(gather, "LONGEST", math.inf)
    wire = Server()
    host = HostSocket(wire, directory=str(tmp_path))
    made = Asker(wire, host)
    wire.connected = True
    host.open()
    wire.gather.begin(2)
    yield made, host
    host.close()
    await made.close()


ERRORS = [
    NotConnected("there is no connection"),
    ResourceExhausted("too many bytes are waiting to be sent"),
    Unavailable("no"),
]


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_message_that_cannot_be_published_keeps_nothing_lent(
    asker: Asker, error: SwarmError, delivery: str
) -> None:
    asker.wire.error = error
    result = await asker.infer(delivery=delivery)
    assert result.status is not Status.OK
    put, outstanding = asker.counts
    assert put >= 1
    assert outstanding == 0


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_hedge_that_cannot_be_published_takes_back_its_own_copy_only(
    asker: Asker, delivery: str
) -> None:
    usual = 40  # requests, before a hedge is granted
    for _ in range(usual):
        asking = await asker.ask(delivery=delivery, hedge=0.5)
        asker.wire.answer(asker.wire.asked[-1])
        assert (await asking).status is Status.OK
    assert asker.counts == (usual, 0)
    asking = await asker.ask(delivery=delivery, hedge=0.5)
    asker.wire.error = ResourceExhausted("full")
    tries = asker.wire.tries
    await eventually(lambda: asker.wire.tries > tries, what="the hedge")
    assert asker.counts == (usual + 2, 1)
    assert asker.requester.hedges == 0
    asker.wire.answer(asker.wire.asked[-1])
    assert (await asking).status is Status.OK


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_tensor_without_a_datatype_keeps_none_of_the_others_lent(
    asker: Asker, delivery: str
) -> None:
    for bad in (np.zeros(4, np.complex64), np.zeros(MIN_BYTES, np.complex64)):
        result = await asker.infer(delivery=delivery, inputs={"x": BIG, "bad": bad})
        assert result.status is Status.INVALID_ARGUMENT
        assert asker.counts == (0, 0)
    assert (await asker.infer(delivery=delivery, inputs={"x": BIG})).status is not Status.OK
    assert asker.counts[0] >= 1  # without it, it would have been


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_message_that_cannot_be_encoded_keeps_nothing_lent(
    asker: Asker, delivery: str
) -> None:
    with pytest.raises(OverflowError):
        await asker.infer(delivery=delivery, sequence=1 << 70)
    assert asker.counts == (1, 0)


async def test_a_policy_that_finds_no_lane_keeps_nothing_lent(asker: Asker) -> None:
    class NoLane:
        def pick_lane(self, ask: Ask, remaining: float) -> str:
            raise InvalidArgument("no lane")

        def ended(self, ask: Ask, ok: bool) -> None:
            pass

    asker.requester.picker = NoLane()
    assert (await asker.infer()).status is Status.INVALID_ARGUMENT
    assert asker.counts[1] == 0
    assert asker.wire.sent == []


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_published_tensor_stays_lent_until_somebody_is_done_with_it(
    asker: Asker, delivery: str
) -> None:
    await asker.infer(delivery=delivery, budget=0.05)
    assert asker.wire.sent
    assert asker.counts == (len(asker.wire.sent), len(asker.wire.sent))


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
@pytest.mark.parametrize(("status", "left"), [(Status.OK, 0), (Status.INTERNAL, 1)])
async def test_a_tensor_is_taken_back_when_its_request_was_answered(
    asker: Asker, delivery: str, status: Status, left: int
) -> None:
    """A failure may be one node's only: another may still be reading."""
    asking = await asker.ask(delivery=delivery)
    asker.wire.answer(asker.wire.asked[-1], status)
    assert (await asking).status is status
    assert asker.counts == (1, left)


async def test_a_message_that_a_lane_refused_is_taken_back(asker: Asker) -> None:
    asking = await asker.ask()
    assert asker.counts == (1, 1)
    [reply] = asker.wire.sent
    refusal = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    asker.wire.deliver(LinkMessage(reply, "", None, refusal))
    assert (await asking).status is Status.RESOURCE_EXHAUSTED
    assert asker.counts == (1, 0)


async def test_a_message_that_nobody_heard_in_fast_mode_is_taken_back_at_each_try(
    asker: Asker,
) -> None:
    asking = asyncio.create_task(asker.infer(delivery=CORE, budget=0.1))
    no_responders = b"NATS/1.0 503\r\n\r\n"
    while not asking.done():
        for reply in asker.wire.sent:
            asker.wire.deliver(LinkMessage(reply, "", no_responders, b""))
        await asyncio.sleep(0.001)
    assert (await asking).status is not Status.OK
    put, outstanding = asker.counts
    assert put > 1
    assert outstanding == 0


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_the_memory_of_a_request_is_used_again_by_the_next(
    asker: Asker, delivery: str
) -> None:
    """Else every request would write to memory that no cache holds."""
    receiver = Lender(asker.wire, asker.mesh)
    offsets = set()
    waiting = []
    for _ in range(10):
        waiting.append(await asker.ask(delivery=delivery))
        if delivery == DURABLE:
            stored = LinkMessage(asker.wire.sent[-1], "", None, b'{"stream":"s","seq":1}')
            asker.wire.deliver(stored)
        tensors = asker.wire.asked[-1].tensors
        [claim] = receiver.open(dict(tensors))
        offsets.add(claim.offset)
        receiver.take(tensors)  # and it is done
    assert len(offsets) <= 2  # memory that the last one used is free when the next has been sent
    for asking in waiting:
        asking.cancel()
    await asyncio.wait(waiting)
    await receiver.close(0.0)


@pytest.mark.parametrize("ends", ["cancelled", "expired", "failed", "answered"])
async def test_a_tensor_that_was_handed_over_is_not_lent_for_longer_than_somebody_waits(
    neighbour: tuple[Asker, Neighbour], ends: str
) -> None:
    """Whoever reads it computes in vain, and sees that it was recycled."""
    asker, there = neighbour
    asking = await asker.ask(0.005 if ends == "expired" else LONG)
    assert asker.counts == (1, 1)
    [features] = there.taken
    if ends == "cancelled":
        asking.cancel()
    elif ends != "expired":
        asker.wire.answer(features, Status.OK if ends == "answered" else Status.INTERNAL)
    await asyncio.wait({asking})
    assert asker.counts == (1, 0)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_message_without_room_on_this_host_in_fast_mode_goes_by_the_server(
    bursting: tuple[Asker, HostSocket], refuses: bool
) -> None:
    """Also when that is known only at the end of a burst."""
    asker, _ = bursting
    asker.near = Near(shared=True, inboxes={"any": "_INBOX.nobody"})
    asking = await asker.ask(0.05, delivery=CORE)
    assert asker.wire.tries == 0
    asker.wire.error = NotConnected("lost") if refuses else None
    asker.wire.gather.end()
    assert asker.wire.tries == 1
    assert len(asker.wire.asked) == (0 if refuses else 1)
    assert asker.counts == (1, 0 if refuses else 1)
    assert (await asking).status is not Status.OK


@pytest.mark.parametrize("reached", [False, True])
async def test_a_request_that_is_given_up_within_a_burst_is_cancelled_or_not_sent(
    bursting: tuple[Asker, HostSocket], reached: bool
) -> None:
    asker, _ = bursting
    inbox = asker.wire.options.inbox if reached else "_INBOX.nobody"
    asker.near = Near(shared=True, inboxes={"any": inbox})
    asking = await asker.ask(delivery=CORE)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert asker.wire.subjects == []
    asker.wire.gather.end()
    cancelled = [f"{SUBJECTS.root}.cancel.m.{INFO.version}"]
    assert asker.wire.subjects == (cancelled if reached else [])
    assert asker.counts == ((1, 1) if reached else (1, 0))
