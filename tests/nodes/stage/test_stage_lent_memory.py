"""Shared memory of results that were handed to the next stage: lent, kept, and free again."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import LARGE, Bench
from support.waiting import eventually

from swarm.errors import ResourceExhausted
from swarm.samehost.memory import unavailable
from swarm.transport.handover.acks import ACK, NAK, PASSED_ON

MakeBench = Callable[..., Awaitable[Bench]]

on_a_host = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@on_a_host
async def test_memory_that_was_lent_comes_back_with_the_word(first: MakeBench) -> None:
    b = await first()
    b.send(tensors=LARGE)
    assert b.lent == 1
    b.socket.say(b.socket.handed[0][2], ACK)
    assert b.lent == 0


@on_a_host
async def test_a_result_that_lies_in_shared_memory_does_not_lie_in_memory_twice(
    first: MakeBench,
) -> None:
    b = await first()
    arrays: list[weakref.ref[np.ndarray]] = []

    def compute(array: np.ndarray) -> np.ndarray:
        result = array + 1
        arrays.append(weakref.ref(result))
        return result

    b.model.compute = compute
    copy = b.send(tensors=LARGE)
    [array] = arrays
    assert array() is None, "while the word is awaited"
    b.socket.say(b.socket.handed[0][2], NAK)
    assert await b.all_ended(copy) == ["ack"]
    [(_, features)] = b.publisher.stored
    assert features.tensors["x"].nbytes == LARGE["x"].nbytes
    b.lender.open(features.tensors)
    assert (features.tensors["x"] == 1.0).all()


@on_a_host
async def test_memory_of_a_result_that_was_stored_since_is_not_freed_by_a_late_word(
    first: MakeBench,
) -> None:
    """Another node may have got the lane's copy, and be reading it."""
    b = await first()
    copy = b.send(tensors=LARGE)
    await eventually(lambda: b.publisher.stored)
    await b.all_ended(copy)
    b.socket.say(b.socket.handed[0][2], ACK)
    assert b.lent == 1


@on_a_host
async def test_memory_of_a_result_that_is_being_stored_is_not_freed_by_a_late_word(
    first: MakeBench,
) -> None:
    """The lane's copy is read from it, if there is one."""
    b = await first()
    b.publisher.hold = True
    stored, refused = b.send(tensors=LARGE), b.send(tensors=LARGE)
    await eventually(lambda: b.publisher.tries == 2)
    for _, _, reply in b.socket.handed:
        b.socket.say(reply, PASSED_ON)
    assert (stored.ended, refused.ended, b.lent) == ("ack", "ack", 2)
    b.publisher.release(None)
    assert b.lent == 2


@on_a_host
async def test_memory_of_a_result_that_was_done_before_its_lane_refused_it_is_free_again(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.hold = True
    b.send(tensors=LARGE)
    await eventually(lambda: b.publisher.tries)
    b.socket.say(b.socket.handed[0][2], PASSED_ON)
    b.publisher.release(ResourceExhausted("full"))
    assert b.lent == 0


@on_a_host
async def test_memory_stays_lent_while_the_lane_is_full(first: MakeBench) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full"), ResourceExhausted("full")]
    copy = b.send(tensors=LARGE)
    b.socket.say(b.socket.handed[0][2], NAK)
    assert await b.all_ended(copy) == ["ack"]
    assert (len(b.publisher.stored), b.lender.stats.put, b.lent) == (1, 1, 1)


@on_a_host
async def test_memory_of_a_result_that_a_full_lane_does_not_take_in_time_is_free_again(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    copy = b.send(budget=0.5, tensors=LARGE)
    b.socket.say(b.socket.handed[0][2], NAK)
    assert await b.all_ended(copy) == ["ack"]
    [answer] = b.answers().values()
    assert "stage 2 is full" in answer.message
    assert (b.lender.stats.put, b.lent) == (1, 0)


@on_a_host
@pytest.mark.parametrize("lane_is_full", [False, True])
async def test_memory_of_a_result_whose_message_is_another_nodes_by_now_is_free_again(
    first: MakeBench, lane_is_full: bool
) -> None:
    b = await first()
    b.send(tensors=LARGE)
    if lane_is_full:
        b.publisher.refusals = [ResourceExhausted("full")] * 1000
        b.socket.say(b.socket.handed[0][2], NAK)
        await eventually(lambda: b.publisher.tries)
    b.server.suspend()
    b.publisher.refusals = []
    if not lane_is_full:
        b.socket.say(b.socket.handed[0][2], NAK)
    await eventually(lambda: not b.lent)
    assert (b.publisher.stored, b.link.expected) == ([], set())


# --- fast mode --------------------------------------------------------------------------------
