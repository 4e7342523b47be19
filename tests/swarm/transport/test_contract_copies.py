"""A parcel with copies and lent memory: worked on once, and its memory is free when it may be."""

from __future__ import annotations

import numpy as np
import pytest
from contract import (
    HANDED,
    LARGE,
    MakeRig,
    Path,
    Receiver,
    Rig,
    Sent,
    finish,
    handed_over,
    needs_shared_memory,
)
from support.waiting import eventually

from swarm.errors import Status
from swarm.fleet.priorities import FALLBACK
from swarm.transport.api import Acked, Delivery, InFlight, Stored

pytestmark = needs_shared_memory


async def hold_until_stored(r: Rig, receiver: Receiver, **more: int) -> tuple[Sent, Delivery]:
    """A parcel that is taken, and then stored since no word of it comes."""
    sent = r.send(5.0, **more)
    taken = await receiver.delivery()
    assert [await sent.event(), await sent.event()] == [InFlight(), Stored(late=True)]
    return sent, taken


@handed_over
async def test_a_late_parcel_and_its_copy_in_the_lane_are_one(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent, taken = await hold_until_stored(r, receiver)
    await r.quiet()
    assert (len(receiver.came), receiver.source.in_hand) == (1, 1), "the copy is not worked on"
    assert await r.stored() == 1, "but kept, until the work is done"
    assert taken.ack(True)
    await r.emptied()
    assert (sent.events, len(receiver.came)) == ([InFlight(), Stored(late=True)], 1)


@pytest.mark.usefixtures("patient")
@handed_over
async def test_a_copy_that_comes_when_the_work_is_done_is_settled_and_not_worked_on(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.source.pause()  # what is stored stays in the lane
    await r.quiet()
    receiver.source.resume()
    sent = r.send(5.0)
    taken = await receiver.delivery()
    assert await sent.event() == InFlight()
    r.sender.store(sent.parcel, sent.on)  # as a sender does that hears nothing for too long
    taken.ack(True)
    await r.emptied()
    assert (len(receiver.came), await r.ever_stored()) == (1, 1)


@handed_over
async def test_the_same_parcel_from_two_senders_is_taken_once(rig: MakeRig, path: Path) -> None:
    """Two nodes may have done the stage before; the other copy comes by the lane, and is joined."""
    r = await rig(path)
    receiver = await r.receiver()
    first = r.send(5.0)
    taken = await receiver.delivery()
    r.number -= 1
    second = r.send(5.0)
    assert [await second.event(), await second.event()] == [InFlight(), Stored()]
    taken.ack(True)
    assert isinstance(await first.final(), Acked | Stored)
    await r.emptied()
    assert len(receiver.came) == 1


@pytest.mark.usefixtures("patient")
@handed_over
async def test_another_attempt_is_another_parcel_and_goes_by_the_server(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.work = finish
    first = r.send(5.0)
    await receiver.delivery()
    r.number -= 1
    second = r.send(6.0, attempt=2)
    await receiver.delivery()
    assert (await first.final(), await second.final()) == (Acked(True), Stored())
    assert receiver.values == [5.0, 6.0]


@handed_over
async def test_one_loan_of_memory_spans_all_tries_and_ends_with_the_work(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    heir = await r.receiver("heir", FALLBACK)
    sent, taken = await hold_until_stored(r, receiver, rows=LARGE)
    loan = sent.parcel.loan
    assert loan.claims
    assert loan.alive, "the lane's copy is read from it"
    receiver.source.pause()
    taken.hand_back()
    again = await heir.delivery()
    np.testing.assert_array_equal(again.features.tensors["x"], np.full((LARGE, 4), 5.0))
    assert sent.parcel.loan is loan
    assert again.ack(True)
    await r.emptied()
    await heir.mesh.link.flush()

    def given_back() -> bool:
        r.mesh.lender.collect()
        return not loan.alive

    await eventually(given_back, "the memory is given back")


@pytest.mark.usefixtures("patient")
async def test_memory_of_a_parcel_is_free_when_its_word_comes_and_not_before(rig: MakeRig) -> None:
    r = await rig(HANDED)
    receiver = await r.receiver()
    sent = r.send(5.0, rows=LARGE)
    taken = await receiver.delivery()
    assert sent.parcel.loan.alive
    taken.ack(True)
    assert isinstance(await sent.final(), Acked)
    assert not sent.parcel.loan.alive


@handed_over
async def test_memory_that_a_process_may_be_reading_is_kept_when_nobody_waits_any_more(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send(5.0, rows=LARGE)
    taken = await receiver.delivery()
    assert sent.sending is not None
    sent.sending.drop()
    sent.parcel.loan.take_back()
    assert sent.parcel.loan.alive
    assert taken.intact()


@pytest.mark.usefixtures("patient")
async def test_memory_that_was_recycled_is_noticed_by_its_reader(rig: MakeRig) -> None:
    r = await rig(HANDED)
    receiver = await r.receiver()
    sent = r.send(5.0, rows=LARGE)
    taken = await receiver.delivery()
    sent.parcel.released()
    other = r.send(6.0, rows=LARGE)  # in the same place
    await receiver.delivery()
    assert not taken.intact()
    assert not taken.fail(Status.INTERNAL, "it failed on other bytes", 2, "n1")
    assert isinstance(await sent.final(), Stored), "its sender has it again"
    assert Status.INTERNAL not in [answer.status for answer in sent.answers]
    assert other.answers == []
