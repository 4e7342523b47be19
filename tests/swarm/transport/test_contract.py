"""What every Sender and Source promises, whichever way a parcel goes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from contract import (
    AT_ONCE,
    FAST,
    INFO,
    LANE,
    LARGE,
    LIMIT,
    MakeRig,
    Path,
    Sent,
    every_path,
    finish,
    handed_over,
    needs_shared_memory,
    stored_or_handed,
    usual_end,
)

from swarm.errors import InvalidArgument, NoResponders, NotConnected, ResourceExhausted, Status
from swarm.transport.api import Acked, Backlog, InFlight, Published, Refused, Stored
from swarm.transport.stage_sender import StageSender

pytestmark = [needs_shared_memory, pytest.mark.usefixtures("patient")]


# --- what is sent comes -----------------------------------------------------------------


@every_path
async def test_parcels_come_once_each_in_order_and_as_they_were(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.work = finish
    for first in range(0, 40, AT_ONCE):  # more than a socket holds would go by the server
        sent = [r.send(float(n), sequence=n + 1) for n in range(first, first + AT_ONCE)]
        for each in sent:
            await receiver.delivery()
            # Nor are more handed over while as many acks are still to be read.
            assert isinstance(await each.final(), usual_end(path))
    await r.quiet()
    assert receiver.values == [float(n) for n in range(40)]
    assert [d.features.sequence for d in receiver.came] == list(range(1, 41))
    assert {d.times_delivered for d in receiver.came} == {1}
    assert {d.fast for d in receiver.came} == {path.fast}
    assert all(0.0 <= d.age < LIMIT for d in receiver.came)
    assert all(0 < d.features.budget_us <= LIMIT * 1e6 for d in receiver.came)
    assert receiver.source.in_hand == 0
    assert r.mesh.link.callback_errors == receiver.mesh.link.callback_errors == 0


@every_path
async def test_a_parcel_ends_once_and_its_sender_hears_nothing_more_of_it(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.work = finish
    sent = [r.send(float(n)) for n in range(5)]
    for each in sent:
        await each.final()
        await receiver.delivery()
    receiver.work(receiver.came[0])
    r.sender.close()
    await r.quiet()
    for each in sent:
        assert each.events[:-1] == ([InFlight()] if path.handed else [])


@every_path
async def test_megabytes_come_bit_by_bit_and_can_be_read_until_the_delivery_ends(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    numbers = np.random.default_rng(1).random((1 << 16, 4), np.float32)
    expected = numbers.copy()
    sent = r.send(tensors={"x": numbers})
    came = await receiver.delivery()
    if path.handed:
        assert isinstance(await sent.event(), InFlight)
    assert came.intact()
    np.testing.assert_array_equal(came.features.tensors["x"], expected)
    came.ack(True)
    assert isinstance(await sent.final(), usual_end(path))


# --- refusal ------------------------------------------------------------------------------


@every_path
async def test_a_tensor_that_has_no_form_on_the_wire_is_refused_and_nothing_comes(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send(tensors={"x": np.zeros((1, 4), np.complex64)})
    [event] = sent.events
    assert isinstance(event, Refused)
    assert isinstance(event.error, InvalidArgument)
    after = r.send(2.0)
    await receiver.delivery()
    assert receiver.values == [2.0]
    assert sent.events == [event]
    assert after.parcel.loan.alive


@every_path
async def test_without_a_connection_a_parcel_is_with_its_sender_at_once(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    await r.mesh.bulk.close()
    sent = r.send()
    [event] = sent.events
    assert isinstance(event, Refused)
    assert isinstance(event.error, NotConnected)
    assert receiver.came == []


async def test_a_full_lane_refuses_a_parcel_and_takes_the_next_when_it_has_room(
    rig: MakeRig,
) -> None:
    r = await rig(LANE, depth=2)
    receiver = await r.receiver()
    sent = [r.send(float(n)) for n in range(3)]
    assert [type(await each.final()) for each in sent] == [Stored, Stored, Refused]
    refusal = sent[2].events[-1]
    assert isinstance(refusal, Refused)
    assert isinstance(refusal.error, ResourceExhausted)
    for _ in range(2):
        (await receiver.delivery()).ack(True)
    await r.emptied()
    assert await r.send(9.0).final() == Stored()


@handed_over
async def test_a_parcel_that_is_not_taken_is_stored_and_comes_from_there(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.backlog = Backlog(0, 0.0, closed=True)
    sent = r.send(7.0)
    assert [await sent.event(), await sent.event()] == [InFlight(), Stored()]
    (await receiver.delivery()).ack(True)
    await r.emptied()
    assert (receiver.values, receiver.counts.taken) == ([7.0], 0)


@handed_over
@pytest.mark.parametrize("room", [True, False])
async def test_a_parcel_that_was_taken_and_then_given_up_is_stored_or_its_senders_again(
    rig: MakeRig, path: Path, room: bool
) -> None:
    """Refused after `InFlight`: where the lane is full."""
    r = await rig(path, depth=1)
    receiver = await r.receiver()
    if not room:
        filler = r.send(1.0, attempt=2)  # which goes by the lane, and fills it until it is done
        assert isinstance(await filler.final(), Stored)
        held = await receiver.delivery()
    sent = r.send(7.0)
    taken = await receiver.delivery()
    assert taken.withdraw()
    assert taken.ended
    assert await sent.event() == InFlight()
    if room:
        assert await sent.event() == Stored()
    else:
        refused = await sent.event()
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, ResourceExhausted)
        assert held.ack(True)
        await r.emptied()
        r.sender.store(sent.parcel, sent.on)
        assert await sent.event() == Stored()
    assert (await receiver.delivery()).features.id == sent.parcel.features.id


async def test_where_no_node_serves_the_next_stage_fast_mode_says_so_to_the_requester(
    rig: MakeRig,
) -> None:
    r = await rig(FAST)
    sent = r.send()
    assert await sent.event() == Published()
    result = await sent.answer()
    assert (result.id, result.status, result.stage) == ("r1", Status.UNAVAILABLE, 2)


async def test_the_server_tells_only_the_version_whose_stage_has_no_node(rig: MakeRig) -> None:
    """One process may serve two versions; each counts its messages from one."""
    r = await rig(FAST)
    heard = r.mesh.link.subscribe(r.mesh.subjects.fresh(INFO.model, "1", 2), lambda message: None)
    served = r.send()
    r.sender = other = StageSender(r.mesh.routes, replace(INFO, version="2"), FAST.stage)
    unserved = r.send()
    assert (await unserved.answer()).status is Status.UNAVAILABLE
    await r.quiet()
    assert served.answers == []
    r.mesh.link.unsubscribe(heard)
    other.close()


async def test_where_no_node_serves_the_first_stage_fast_mode_refuses_after_all(
    rig: MakeRig,
) -> None:
    r = await rig(Path("fast, by a requester", fast=True, stage=1))
    sent = r.send()
    assert await sent.event() == Published()
    refused = await sent.event()
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NoResponders)


# --- pause, give back, drain ----------------------------------------------------------------


@every_path
async def test_a_paused_source_takes_nothing_and_nothing_is_lost_by_it(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.source.pause()
    sent = r.send(3.0)
    end = await sent.final()
    if path.fast:
        assert (await sent.answer()).status is Status.UNAVAILABLE
        assert receiver.came == []
        return
    assert end == Stored()
    await r.quiet()
    assert receiver.came == []
    receiver.source.resume()
    await receiver.delivery()
    assert receiver.values == [3.0]


@every_path
async def test_a_delivery_that_is_given_back_is_worked_on_again_unless_only_its_requester_has_it(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send(3.0)
    first = await receiver.delivery()
    first.hand_back()
    end = await sent.final()
    assert isinstance(end, Published if path.fast else Stored)
    if path.fast:
        await r.quiet()
        assert len(receiver.came) == 1
        return
    again = await receiver.delivery()
    assert (first.ended, again.ended) == (True, False)
    assert again.features.id == first.features.id
    assert again.ack(True)
    await r.emptied()


@stored_or_handed
async def test_a_source_gives_back_all_that_it_has_in_hand(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = [r.send(float(n)) for n in range(5)]
    first = [await receiver.delivery() for _ in sent]
    assert receiver.source.in_hand == 5
    receiver.work = finish
    receiver.source.hand_back()
    for each in sent:
        assert isinstance(await each.final(), Stored)
    for _ in sent:
        await receiver.delivery()
    await r.emptied()
    assert all(delivery.ended for delivery in first)
    assert sorted(receiver.values[5:]) == [0.0, 1.0, 2.0, 3.0, 4.0]


@stored_or_handed
async def test_only_the_first_end_of_a_delivery_counts(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send()
    delivery = await receiver.delivery()
    delivery.ack(True)
    delivery.hand_back()
    delivery.dead_letter("no")
    delivery.withdraw()
    assert isinstance(await sent.final(), usual_end(path))
    await r.quiet()
    assert len(receiver.came) == 1
    await r.emptied()


@every_path
async def test_a_drained_source_has_taken_all_that_was_on_its_way_or_refused_it(
    rig: MakeRig, path: Path
) -> None:
    """Each parcel was delivered, lies in its lane, or its requester knows. (Of one that lay in a
    socket in fast mode, the requester notices.)"""
    r = await rig(path)
    receiver = await r.receiver()
    receiver.work = finish
    sent = [r.send(float(n)) for n in range(20)]
    await asyncio.sleep(0)
    await receiver.close()
    by_then = len(receiver.came)
    sent += [r.send(float(n)) for n in range(20, 40)]
    ends = [await each.final() for each in sent]
    await r.quiet()
    assert len(receiver.came) == by_then, "nothing comes after that"
    assert len(set(receiver.values)) == by_then
    if path.fast:
        answered = [each for each in sent if each.answers]
        assert {each.answers[0].status for each in answered} <= {Status.UNAVAILABLE}
        assert path.here or by_then + len(answered) == 40
    else:
        assert {type(end) for end in ends} <= {Stored, Acked}
        assert by_then + await r.stored() == 40


# --- Sending, and the end of a sender ----------------------------------------------------------


@every_path
async def test_of_a_parcel_that_was_dropped_no_event_comes(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send()
    assert sent.sending is not None
    sent.sending.drop()
    seen = list(sent.events)
    await receiver.delivery()
    if path is not LANE:  # what is stored is stored
        await r.quiet()
        assert sent.events == seen


@handed_over
async def test_an_answer_to_the_request_ends_its_parcel(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send()
    delivery = await receiver.delivery()
    delivery.answer({"x": np.ones((1, 4), np.float32)}, True, lambda error: None)
    assert (await sent.answer()).status is Status.OK
    assert sent.sending is not None
    sent.sending.answered(())
    await r.quiet()
    assert sent.events == [InFlight()]
    assert await r.ever_stored() == 0


@handed_over
async def test_a_sender_that_is_closed_stores_all_that_it_holds(rig: MakeRig, path: Path) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = [r.send(float(n)) for n in range(3)]
    taken = [await receiver.delivery() for _ in sent]
    r.sender.close()
    for each in sent:
        assert isinstance(await each.final(), Stored)
    for delivery in taken:
        delivery.ack(True)
    await r.emptied()
    late = r.send(9.0)
    assert await late.event() == Stored(), "it hands nothing over any more"


@handed_over
async def test_a_defect_as_soon_as_a_parcel_is_held_costs_the_others_nothing(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    receiver.work = finish

    def fails(sent: Sent) -> None:
        sent.defect = InFlight

    bad = r.send(1.0, before=fails)
    good = r.send(2.0)
    assert isinstance(await bad.final(), Refused)
    assert await good.final() == Acked(True)
    assert r.mesh.link.callback_errors == 1


@handed_over
async def test_a_defect_on_an_event_of_one_parcel_costs_the_others_nothing(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()

    def fails(sent: Sent) -> None:
        sent.defect = Acked

    sent = [r.send(float(n), before=fails if n == 1 else None) for n in range(3)]
    for _ in sent:
        (await receiver.delivery()).ack(True)
    ends = [await each.final() for each in sent]
    assert [type(end) for end in ends] == [Acked, Refused, Acked]
    assert r.mesh.link.callback_errors == 1


@handed_over
async def test_a_parcel_that_another_node_has_by_now_is_not_stored(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send(5.0, rows=LARGE)
    sent.parcel.wanted = lambda: False
    (await receiver.delivery()).withdraw()
    await r.quiet()
    assert sent.events == [InFlight()]
    assert await r.ever_stored() == 0
    assert not sent.parcel.loan.alive
