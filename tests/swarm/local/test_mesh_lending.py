"""What a requester lends for a message that reaches nobody comes back at once."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
import weakref
from collections.abc import AsyncIterator

import msgpack
import numpy as np
import pytest
from fake_stage import INFO, SUBJECTS
from nowhere import Wire

from swarm.errors import (
    InvalidArgument,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.placement import Nearby
from swarm.flow.hedge import Hedger
from swarm.lanes import Publisher
from swarm.link import LinkMessage
from swarm.local.lending import UNLENT, Claims, Lent
from swarm.requests.request import CORE, DURABLE, Ask
from swarm.requests.requester import Requester
from swarm.shm import MIN_BYTES, Claim, Reader, Ring, sweep, unavailable
from swarm.wire.maps import unpack_map
from swarm.wire.messages import Result, result_parts
from swarm.wire.tensors import decode_tensors

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

BIG = np.zeros((1, MIN_BYTES // 4), np.float32)


class Lender:
    """A requester whose stage 1 shares its memory."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.claims = Claims(self.wire, f"test-{secrets.token_hex(6)}")
        self.requester = Requester(
            self.wire,
            SUBJECTS,
            Publisher(self.wire),
            self.claims,
            lambda *_: Nearby(shared=True),
        )

    async def infer(self, budget: float = 0.1, **options: object) -> Result:
        deadline = asyncio.get_running_loop().time() + budget
        inputs = options.pop("inputs", {"x": BIG})
        return await self.requester.infer(Ask(INFO, inputs, deadline, **options))  # type: ignore[arg-type]

    def burst(self) -> None:
        """Several messages come at once, until the `end()`, however long that takes."""
        self.wire.gather.begin(2)
        self.wire.gather._since = math.inf

    @property
    def counts(self) -> tuple[int, int]:
        """How many tensors were ever lent, and how many still are."""
        stats = self.claims._ring.stats
        return stats.put, stats.outstanding


@pytest.fixture
async def lender() -> AsyncIterator[Lender]:
    made = Lender()
    yield made
    made.requester.close()
    await made.claims.close(0.0)
    sweep(made.claims._mesh, grace=0.0)  # what is lent still is left to those who live


ERRORS = [
    NotConnected("there is no connection"),
    ResourceExhausted("too many bytes are waiting to be sent"),
    Unavailable("no"),
]


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_message_that_cannot_be_published_keeps_nothing_lent(
    lender: Lender, error: SwarmError, delivery: str
) -> None:
    lender.wire.error = error
    result = await lender.infer(delivery=delivery)
    assert result.status is not Status.OK
    put, outstanding = lender.counts
    assert put >= 1
    assert outstanding == 0


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_hedge_that_cannot_be_published_takes_back_its_own_copy_only(
    lender: Lender, delivery: str
) -> None:
    loop = asyncio.get_running_loop()
    ask = Ask(INFO, {"x": BIG}, loop.time() + 5, delivery, hedge=0.5, attempt=1)
    lender.requester._outgoing.send(ask, "reply", loop.time())
    lender.requester._hedger = Hedger(fraction=1.0)
    for _ in range(100):
        lender.requester._hedger.on_request(time.monotonic())
    lender.wire.error = ResourceExhausted("full")
    lender.requester._hedge(ask, "reply", loop)
    assert lender.counts == (2, 1)
    assert (ask.attempt, lender.requester.hedges) == (1, 0)


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_tensor_without_a_datatype_keeps_none_of_the_others_lent(
    lender: Lender, delivery: str
) -> None:
    for bad in (np.zeros(4, np.complex64), np.zeros(MIN_BYTES, np.complex64)):
        result = await lender.infer(delivery=delivery, inputs={"x": BIG, "bad": bad})
        assert result.status is Status.INVALID_ARGUMENT
        assert lender.counts == (0, 0)
    assert (await lender.infer(delivery=delivery, inputs={"x": BIG})).status is not Status.OK
    assert lender.counts[0] >= 1  # without it, it would have been


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_a_message_that_cannot_be_encoded_keeps_nothing_lent(
    lender: Lender, delivery: str
) -> None:
    with pytest.raises(OverflowError):
        await lender.infer(delivery=delivery, sequence=1 << 70)
    assert lender.counts == (1, 0)


async def test_a_policy_that_finds_no_lane_keeps_nothing_lent(lender: Lender) -> None:
    class NoLane:
        def pick_lane(self, ask: Ask, remaining: float) -> str:
            raise InvalidArgument("no lane")

        def ended(self, ask: Ask, ok: bool) -> None:
            pass

    lender.requester.picker = NoLane()
    assert (await lender.infer()).status is Status.INVALID_ARGUMENT
    assert lender.counts[1] == 0
    assert lender.wire.sent == []


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_what_was_published_stays_lent_until_somebody_is_done_with_it(
    lender: Lender, delivery: str
) -> None:
    await lender.infer(delivery=delivery, budget=0.05)
    assert lender.wire.sent
    assert lender.counts == (len(lender.wire.sent), len(lender.wire.sent))


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_what_was_answered_is_taken_back_at_once(lender: Lender, delivery: str) -> None:
    loop = asyncio.get_running_loop()
    for status, attempts, left in ((Status.OK, 1, 0), (Status.OK, 2, 2), (Status.INTERNAL, 1, 3)):
        ask = Ask(INFO, {"x": BIG}, loop.time() + 5, delivery)
        for attempt in range(1, attempts + 1):
            ask.attempt = attempt
            lender.requester._outgoing.send(ask, "reply", loop.time())
        lender.requester._asks["reply"] = ask
        answer = Result(ask.id, INFO.model, INFO.version, status=status)
        lender.requester._answer(LinkMessage("reply", "", None, b"".join(result_parts(answer, []))))
        await asyncio.sleep(0)  # behind the caller's turn
        # Of a second attempt the first may still be read; a failure may be one node's only.
        assert lender.counts[1] == left


async def test_what_a_lane_refused_is_taken_back(lender: Lender) -> None:
    loop = asyncio.get_running_loop()
    ask = Ask(INFO, {"x": BIG}, loop.time() + 5, attempt=1)
    lender.requester._outgoing.send(ask, "reply", loop.time())
    assert lender.counts == (1, 1)
    [reply] = lender.wire.sent
    refusal = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    lender.wire.deliver(LinkMessage(reply, "", None, refusal))
    assert lender.counts == (1, 0)


async def test_what_nobody_heard_in_fast_mode_is_taken_back_at_each_try(lender: Lender) -> None:
    asking = asyncio.create_task(lender.infer(delivery=CORE, budget=0.1))
    no_responders = b"NATS/1.0 503\r\n\r\n"
    while not asking.done():
        for reply in lender.wire.sent:
            lender.wire.deliver(LinkMessage(reply, "", no_responders, b""))
        await asyncio.sleep(0.001)
    assert (await asking).status is not Status.OK
    put, outstanding = lender.counts
    assert put > 1
    assert outstanding == 0


@pytest.mark.parametrize("refuses", [False, True])
async def test_what_finds_no_room_on_this_host_in_fast_mode_goes_by_the_server(
    lender: Lender, refuses: bool
) -> None:
    """Also when that is known only at the end of a burst."""
    requester, loop = lender.requester, asyncio.get_running_loop()
    requester._outgoing._near = lambda *_: Nearby(shared=True, inboxes={"any": "_INBOX.nobody"})
    lender.wire.connected = True
    requester._outgoing._direct.open()
    ask = Ask(INFO, {"x": BIG}, loop.time() + 5, CORE, attempt=1)
    ask.outcome = loop.create_future()
    requester._asks["reply"] = ask
    lender.burst()
    requester._outgoing.send(ask, "reply", loop.time())
    assert (lender.wire.sent, ask.stored) == ([], False)
    lender.wire.error = NotConnected("lost") if refuses else None
    lender.wire.gather.end()
    requester._outgoing._direct.close()
    assert lender.counts == (1, 0 if refuses else 1)
    assert (lender.wire.sent, ask.stored) == ([] if refuses else ["reply"], not refuses)
    assert ask.outcome.done() == refuses


@pytest.mark.parametrize("heard", [False, True])
async def test_what_is_given_up_within_a_burst_is_cancelled_or_not_sent(
    lender: Lender, heard: bool
) -> None:
    requester, loop = lender.requester, asyncio.get_running_loop()
    inbox = requester._outgoing._direct._link.options.inbox if heard else "_INBOX.nobody"
    requester._outgoing._near = lambda *_: Nearby(shared=True, inboxes={"any": inbox})
    lender.wire.connected = True
    requester._outgoing._direct.open()
    lender.burst()
    ask = Ask(INFO, {"x": BIG}, loop.time() + 5, CORE)
    asking = asyncio.create_task(requester.infer(ask))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert lender.wire.subjects == []
    lender.wire.gather.end()
    requester._outgoing._direct.close()
    assert lender.wire.subjects == ([f"swarm.test.cancel.m.{INFO.version}"] if heard else [])
    assert lender.counts == ((1, 1) if heard else (1, 0))


@pytest.mark.parametrize("delivery", [DURABLE, CORE])
async def test_the_memory_of_a_request_is_used_again_by_the_next(
    lender: Lender, delivery: str
) -> None:
    """Else every request would write to memory that no cache holds."""
    receiver = Reader(lender.claims._ring._mesh)
    offsets = set()
    loop = asyncio.get_running_loop()
    for _ in range(10):
        ask = Ask(INFO, {"x": BIG}, loop.time() + 5, delivery, attempt=1)
        lender.requester._outgoing.send(ask, "reply", loop.time())
        lender.wire.deliver(LinkMessage(lender.wire.sent[-1], "", None, b'{"stream":"s","seq":1}'))
        offset, slot = list(lender.claims._ring._slots.items())[-1]
        offsets.add(offset)
        segment = lender.claims._ring._segment
        assert segment is not None
        place = (lender.claims.host, segment.name, offset, 1, slot.generation, 0, slot.word)
        assert receiver.done(Claim(*place))
    assert len(offsets) <= 2  # what the last one used is seen when the next has been sent
    receiver.close()


@pytest.mark.parametrize("ends", ["cancelled", "expired", "failed", "answered"])
async def test_what_was_handed_over_is_not_lent_for_longer_than_somebody_waits(
    lender: Lender, ends: str
) -> None:
    """Whoever reads it computes in vain, and sees that it was recycled."""
    requester = lender.requester
    requester._outgoing._near = lambda *_: Nearby(shared=True, inboxes={"any": "_INBOX.first"})
    requester._outgoing._direct.send = lambda *_: True  # type: ignore[method-assign]
    lender.wire.connected = True
    asking = asyncio.create_task(lender.infer(budget=0.005 if ends == "expired" else 5.0))
    await asyncio.sleep(0)
    assert lender.counts == (1, 1)
    [(reply, ask)] = requester._asks.items()
    if ends == "cancelled":
        asking.cancel()
    elif ends != "expired":
        status = Status.OK if ends == "answered" else Status.INTERNAL
        answer = Result(ask.id, INFO.model, INFO.version, status=status)
        lender.wire.deliver(LinkMessage(reply, "", None, b"".join(result_parts(answer, []))))
    await asyncio.wait({asking})
    assert lender.counts == (1, 0)


# --- the helper by itself -----------------------------------------------------------------


async def test_arrays_that_were_copied_are_let_go_and_small_ones_travel(lender: Lender) -> None:
    large, small = np.ones((2, MIN_BYTES), np.int8), np.ones(3)
    copied = weakref.ref(large)
    lent = lender.claims.lend({"large": large, "small": small})
    del large
    assert copied() is None
    said = lent.tensors["large"]
    assert (said.dtype, said.shape, said.nbytes) == (np.int8, (2, MIN_BYTES), 2 * MIN_BYTES)
    assert lent.tensors["small"] is small
    assert lent.packed is not None
    back = decode_tensors(msgpack.unpackb(lent.packed))
    assert Claim.from_wire(back["large"].claim["claim"]) == lent.claims["large"]
    assert lender.claims.open(back) == [lent.claims["large"]]
    assert (back["large"] == 1).all()
    assert (back["small"] == small).all()


def test_lent_tensors_are_taken_back_by_an_error_only_and_any_number_of_times() -> None:
    ring = Ring(f"test-{secrets.token_hex(6)}")
    first, second = ring.put([b"x"]), ring.put([b"y"])
    assert first is not None
    assert second is not None
    lent = Lent({}, ring, {"x": first})
    with lent:
        pass
    assert ring.stats.outstanding == 2
    with pytest.raises(NotConnected), lent:
        raise NotConnected("gone")
    assert ring.stats.outstanding == 1
    lent.take_back()
    third = ring.put([b"z"])  # in the same place as the first
    assert third is not None
    lent.take_back()
    assert ring.stats.outstanding == 2
    ring.close()


def test_without_claims_there_is_nothing_to_take_back() -> None:
    assert UNLENT.packed is None
    UNLENT.take_back()
    with pytest.raises(NotConnected), UNLENT:
        raise NotConnected("gone")


async def test_what_has_no_room_or_is_small_is_not_lent(lender: Lender) -> None:
    assert lender.claims.lend({"x": BIG[:, :-1]}) is UNLENT
    lender.claims._ring = Ring("test", capacity=1 << 12)
    assert lender.claims.lend({"x": BIG}) is UNLENT


async def test_lent_tensors_are_little_endian_whatever_they_were(lender: Lender) -> None:
    values = np.arange(MIN_BYTES).astype(">f4")
    lent = lender.claims.lend({"x": values})
    assert lent.packed is not None
    got = decode_tensors(unpack_map(lent.packed, 1 << 20))
    lender.claims.open(got)
    np.testing.assert_array_equal(got["x"], values)
    lent.take_back()


async def test_what_went_ahead_is_not_taken_back_when_it_was_not_stored(lender: Lender) -> None:
    """Whoever it was handed to may be reading it."""
    lent = lender.claims.lend({"x": BIG})
    lent.keep()
    lent.take_back()
    with pytest.raises(NotConnected), lent:
        raise NotConnected("lost")
    assert lender.counts == (1, 1)
