"""Shared memory that is lent for a request is free again as soon as the request has ended.

A process that still reads it computes in vain, and notices. Only a first attempt lends memory: the
others carry their bytes.
"""

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
from simulated_desk import now
from support.fake_link import FakeLink
from support.waiting import eventually

from swarm.errors import (
    InvalidArgument,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Placement
from swarm.fleet.priorities import PRIMARY
from swarm.link import LinkMessage, gather
from swarm.requests.attempts import DEFAULTS, AttemptConfig
from swarm.requests.request import DURABLE, FAST, Ask, Picker
from swarm.requests.requester import Requester
from swarm.samehost.compact import decode_features
from swarm.samehost.host_socket import HostSocket
from swarm.samehost.lending import Lender
from swarm.samehost.memory import MIN_BYTES, sweep, unavailable
from swarm.transport.lane import Publisher
from swarm.transport.routes import Routes
from swarm.wire.messages import Features, Result, result_parts
from swarm.wire.tensors import Claimed, Part

pytestmark = [
    pytest.mark.simulated,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

BIG = np.zeros((1, MIN_BYTES // 4), np.float32)
LONG = 5.0  # seconds


class Server(FakeLink):
    """Takes messages, or refuses them with `error`; `asked` are those for stage 1."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Features] = []
        self.tries = 0

    def carry(self, message: LinkMessage) -> None:
        self.tries += 1
        super().carry(message)
        if not message.subject.startswith(f"{SUBJECTS.root}.cancel."):
            self.asked.append(Features.decode(message.data))

    def answer(self, features: Features, status: Status = Status.OK) -> None:
        result = Result(
            features.id, INFO.model, INFO.version, status=status, attempt=features.attempt
        )
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
    """A requester whose stage 1 shares its memory. inbox: where a process of this host takes what
    is handed over; "" where none does."""

    def __init__(
        self,
        wire: Server,
        socket: Any = None,
        inbox: str = "",
        picker: Picker | None = None,
        config: AttemptConfig = DEFAULTS,
    ) -> None:
        self.mesh = f"test-{secrets.token_hex(6)}"
        self.wire = wire
        self.inbox = inbox
        self.lender = Lender(self.wire, self.mesh)
        self.requester = Requester(
            Routes(
                self.wire,
                SUBJECTS,
                Publisher(self.wire),
                self.lender,
                socket or HostSocket(wire),
                Placement(
                    self.lender.host,
                    lambda *_: [StagePeer("n", PRIMARY, self.lender.host, False, self.inbox)],
                ),
                lambda: None,
                clock=now,
            ),
            picker,
            config=config,
        )

    async def infer(self, budget: float = 0.1, **options: Any) -> Result:
        deadline = asyncio.get_running_loop().time() + budget
        inputs = options.pop("inputs", {"x": BIG})
        return await self.requester.infer(Ask(INFO, inputs, deadline, **options))

    async def ended(self, asking: asyncio.Task[Result]) -> Result:
        """The result; memory is freed behind the turn of the caller, who waits for it."""
        result = await asking
        await asyncio.sleep(0)
        return result

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
    made = Asker(Server(), there, "_INBOX.first")
    made.wire.connected = True
    yield made, there
    await made.close()


@pytest.fixture
async def bursting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Asker, HostSocket]]:
    """A requester with a socket on this host, to which several messages come at once: until
    `gather.end()`, however slow the machine is."""
    monkeypatch.setattr(gather, "LONGEST_BURST", math.inf)
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


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
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


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
async def test_a_hedge_that_cannot_be_published_leaves_the_first_copy_its_memory(
    delivery: str,
) -> None:
    asker = Asker(Server(), config=AttemptConfig(hedges_per_request=1.0))
    usual = 30  # requests, from which it is known how long one takes
    for _ in range(usual):
        asking = await asker.ask(delivery=delivery, hedge=0.5)
        asker.wire.answer(asker.wire.asked[-1])
        assert (await asking).status is Status.OK
    hedges = asker.requester.hedges
    asking = await asker.ask(delivery=delivery, hedge=0.5)
    asker.wire.error = ResourceExhausted("full")
    tries = asker.wire.tries
    await eventually(lambda: asker.wire.tries > tries, what="the hedge")
    assert asker.counts == (usual + 1, 1)
    assert asker.requester.hedges == hedges
    asker.wire.answer(asker.wire.asked[-1])
    assert (await asking).status is Status.OK
    await asker.close()


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
async def test_a_tensor_without_a_datatype_keeps_none_of_the_others_lent(
    asker: Asker, delivery: str
) -> None:
    for bad in (np.zeros(4, np.complex64), np.zeros(MIN_BYTES, np.complex64)):
        result = await asker.infer(delivery=delivery, inputs={"x": BIG, "bad": bad})
        assert result.status is Status.INVALID_ARGUMENT
        assert asker.counts == (0, 0)
    assert (await asker.infer(delivery=delivery, inputs={"x": BIG})).status is not Status.OK
    assert asker.counts[0] >= 1  # without it, it would have been


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
async def test_a_message_that_cannot_be_encoded_keeps_nothing_lent(
    asker: Asker, delivery: str
) -> None:
    with pytest.raises(OverflowError):
        await asker.infer(delivery=delivery, sequence=1 << 70)
    await asyncio.sleep(0)
    assert asker.counts == (1, 0)


async def test_a_policy_that_finds_no_lane_keeps_nothing_lent() -> None:
    class NoLane:
        def pick_lane(self, ask: Ask, remaining: float) -> str:
            raise InvalidArgument("no lane")

        def ended(self, ask: Ask, ok: bool) -> None:
            pass

    asker = Asker(Server(), picker=NoLane())
    result = await asker.infer()
    assert (result.status, result.message) == (Status.INVALID_ARGUMENT, "no lane")
    assert asker.counts[1] == 0
    assert asker.wire.replies == []
    await asker.close()


ENDS = ["answered", "failed", "expired", "cancelled"]


async def end(asker: Asker, asking: asyncio.Task[Result], how: str) -> None:
    """End a request that was asked once; one that is to expire has a small budget."""
    if how == "cancelled":
        asking.cancel()
    elif how != "expired":
        status = Status.OK if how == "answered" else Status.INTERNAL
        asker.wire.answer(asker.wire.asked[-1], status)
    await asyncio.wait({asking})
    await asyncio.sleep(0)


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
@pytest.mark.parametrize("how", ENDS)
async def test_a_published_tensor_is_lent_until_its_request_has_ended(
    asker: Asker, delivery: str, how: str
) -> None:
    asking = await asker.ask(0.05 if how == "expired" else LONG, delivery=delivery)
    assert asker.counts == (1, 1)
    await end(asker, asking, how)
    assert asker.counts == (1, 0)


@pytest.mark.parametrize("how", ENDS)
async def test_a_tensor_of_a_request_that_was_retried_is_lent_until_the_request_has_ended(
    asker: Asker, how: str
) -> None:
    """The first attempt may still be read. The second carries its bytes."""
    asking = await asker.ask(0.05 if how == "expired" else LONG)
    asker.wire.reconnect()
    await eventually(lambda: len(asker.wire.asked) == 2)
    [first], [second] = (each.tensors.values() for each in asker.wire.asked)
    assert isinstance(first, Claimed)
    assert isinstance(second, np.ndarray)
    assert asker.counts == (1, 1)
    await end(asker, asking, how)
    assert asker.counts == (1, 0)


async def test_a_message_that_a_lane_refused_is_taken_back(asker: Asker) -> None:
    asking = await asker.ask()
    assert asker.counts == (1, 1)
    [reply] = asker.wire.replies
    refusal = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    asker.wire.deliver(LinkMessage(reply, "", None, refusal))
    assert (await asker.ended(asking)).status is Status.RESOURCE_EXHAUSTED
    assert asker.counts == (1, 0)


async def test_the_memory_of_a_message_that_nobody_heard_in_fast_mode_is_free_at_once(
    asker: Asker,
) -> None:
    asking = await asker.ask(delivery=FAST)
    [reply] = asker.wire.replies
    asker.wire.deliver(LinkMessage(reply, "", b"NATS/1.0 503\r\n\r\n", b""))
    assert asker.counts == (1, 0)
    assert not asking.done()
    await eventually(lambda: len(asker.wire.asked) == 2)
    asker.wire.answer(asker.wire.asked[-1])
    assert (await asking).status is Status.OK


@pytest.mark.parametrize("delivery", [DURABLE, FAST])
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
            stored = LinkMessage(asker.wire.replies[-1], "", None, b'{"stream":"s","seq":1}')
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


@pytest.mark.parametrize("how", ENDS)
async def test_a_tensor_that_was_handed_over_is_lent_until_its_request_has_ended(
    neighbour: tuple[Asker, Neighbour], how: str
) -> None:
    asker, there = neighbour
    asking = await asker.ask(0.005 if how == "expired" else LONG)
    assert asker.counts == (1, 1)
    asker.wire.asked.append(there.taken[0])
    await end(asker, asking, how)
    assert asker.counts == (1, 0)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_message_without_room_on_this_host_in_fast_mode_goes_by_the_server(
    bursting: tuple[Asker, HostSocket], refuses: bool
) -> None:
    """Also when that is known only at the end of a burst."""
    asker, _ = bursting
    asker.inbox = "_INBOX.nobody"
    asking = await asker.ask(0.05, delivery=FAST)
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
    asker.inbox = asker.wire.options.inbox if reached else "_INBOX.nobody"
    asking = await asker.ask(delivery=FAST)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert asker.wire.subjects == []
    asker.wire.gather.end()
    cancelled = [f"{SUBJECTS.root}.cancel.m.{INFO.version}"]
    assert asker.wire.subjects == (cancelled if reached else [])
    assert asker.counts == (1, 0)
