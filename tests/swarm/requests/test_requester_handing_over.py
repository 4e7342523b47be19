"""A requester keeps a request that a process of its host has, until the answer comes, and stores it
only if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from fake_stage import INFO
from neighbours import FIRST, KNOBS, LONG, Shop
from simulated_desk import now
from support.handover import change_handover
from support.simulated_time import SimulatedLoop

from swarm.errors import NotConnected, ResourceExhausted, Status, Unavailable
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import FAST, Ask
from swarm.requests.under_way import MOST_ALONE
from swarm.transport.handover import policy
from swarm.transport.handover.acks import ACK, NAK, PASSED_ON
from swarm.transport.stage_sender import MOST_IN_FLIGHT

ALL_HEDGED = AttemptConfig(hedges_per_request=1.0)

pytestmark = pytest.mark.simulated


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(getattr(request, "param", KNOBS))
    yield made
    assert all(task.done() for task in made.tasks)
    assert made.is_idle()


async def test_an_answered_request_is_never_stored_and_nothing_is_cancelled(shop: Shop) -> None:
    asked = await shop.ask()
    shop.answer()
    assert (await asked).status is Status.OK
    assert (shop.lanes.stored, shop.wire.subjects) == ([], [])


async def test_a_refused_request_is_stored_at_once_as_the_same_message_with_the_rest_of_its_budget(
    shop: Shop,
) -> None:
    asked = await shop.ask()
    await asyncio.sleep(0.002)
    shop.say(NAK)
    [copy], [(first, _)] = shop.lanes.stored, shop.host.sent
    assert (copy.message_id, copy.reply) == (first.message_id, first.reply)
    assert copy.budget_us == pytest.approx(first.budget_us - 2_000, abs=1)
    shop.say(NAK)
    shop.say(ACK)
    assert len(shop.lanes.stored) == 1, "the first word counts"
    shop.answer()
    assert (await asked).status is Status.OK
    assert shop.wire.subjects == [], "one copy, one answer: nothing to cancel"


async def test_a_request_without_an_answer_in_good_time_is_stored(shop: Shop) -> None:
    began = now()
    asked = await shop.ask()
    await shop.stored()
    assert policy.HANDOVER.least_patience < now() - began < policy.HANDOVER.most_patience
    assert not asked.done()
    shop.answer()
    assert (await asked).status is Status.OK
    assert shop.requester.retries == 0
    assert shop.wire.subjects == ["swarm.test.cancel.m.1"], "the other copy need not be computed"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_late_request_that_cannot_be_stored_may_still_be_answered(
    shop: Shop, at_once: bool
) -> None:
    """A full lane does not end it: the process that is late has it."""
    if at_once:
        shop.lanes.at_once = NotConnected("lost")
    else:
        shop.lanes.error = ResourceExhausted("full")
    asked = await shop.ask()
    if not at_once:
        await shop.stored()
    await asyncio.sleep(0.05)
    assert not asked.done()
    shop.answer()
    assert (await asked).status is Status.OK
    assert (shop.requester.retries, shop.wire.subjects) == (0, [])


@pytest.mark.parametrize("shop", [AttemptConfig(retries_per_second=0.0)], indirect=True)
async def test_a_failure_is_told_though_another_copy_of_the_attempt_is_never_answered(
    shop: Shop,
) -> None:
    """A node that was handed one copy and pulls the other one answers once."""
    began = now()
    asked = await shop.ask(10.0)
    await shop.stored()
    shop.answer(status=Status.UNAVAILABLE)
    assert (await asked).status is Status.UNAVAILABLE
    assert 1.0 < now() - began < 5.0, "an answer to the other copy was waited for, not all the time"


async def test_an_answer_that_comes_while_there_is_no_connection_counts(shop: Shop) -> None:
    shop.lanes.at_once = NotConnected("lost")
    asked = await shop.ask()
    shop.say(NAK)  # and had it in hand, all the same
    await asyncio.sleep(0.02)
    assert not asked.done(), "it waits for a connection"
    shop.answer()
    assert (await asyncio.wait_for(asked, 1.0)).status is Status.OK


async def test_the_end_of_the_wait_for_a_connection_is_no_silence_of_the_next_attempt(
    shop: Shop,
) -> None:
    shop.lanes.at_once = NotConnected("lost")
    asked = await shop.ask()
    shop.say(NAK)
    await asyncio.sleep(0.02)
    shop.lanes.at_once = None
    shop.wire.reconnect()
    await shop.stored()
    await asyncio.sleep(0.02)
    assert [features.attempt for features in shop.lanes.stored] == [2]
    shop.answer()
    assert (await asked).status is Status.OK


async def test_a_process_that_is_silent_for_longer_than_a_run_is_asked_whether_it_lives(
    shop: Shop,
) -> None:
    """Of runs as long as the answers say; it does not answer, so the request is stored."""
    asked = await shop.ask()
    shop.answer(us=500_000)
    await asked
    asked = await shop.ask()
    await shop.stored()
    assert len(shop.host.asked) == 1
    shop.answer()
    assert (await asked).status is Status.OK
    shop.wire.forget(shop.host.asked[0])  # a second later by itself


async def test_a_request_that_a_later_lane_has_is_not_stored(shop: Shop) -> None:
    asked = await shop.ask()
    shop.say(PASSED_ON)
    await asyncio.sleep(0.05)
    assert shop.lanes.stored == []
    shop.answer()
    assert (await asked).status is Status.OK


async def test_a_request_that_is_given_up_is_cancelled_and_not_stored_later(shop: Shop) -> None:
    asked = await shop.ask()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert shop.wire.subjects == ["swarm.test.cancel.m.1"]
    await asyncio.sleep(0.05)
    assert shop.lanes.stored == []


async def test_a_full_lane_behind_a_refusal_is_a_fast_refusal(shop: Shop) -> None:
    shop.lanes.error = ResourceExhausted("full")
    asked = await shop.ask()
    shop.say(NAK)
    assert (await asked).status is Status.RESOURCE_EXHAUSTED


async def test_a_request_that_could_not_be_stored_is_asked_again(shop: Shop) -> None:
    shop.lanes.at_once = Unavailable("no")
    asked = await shop.ask()
    shop.say(NAK)
    shop.lanes.at_once = None
    [again] = await shop.stored()
    assert again.attempt == 2
    shop.answer(0)
    assert (await asked).status is Status.OK


async def test_a_defect_in_storing_asks_again(shop: Shop) -> None:
    shop.lanes.defect = ValueError("a defect")
    asked = await shop.ask()
    shop.say(NAK)
    shop.lanes.defect = None
    [again] = await shop.stored()
    assert (again.attempt, shop.wire.callback_errors) == (2, 1)
    shop.answer(0)
    assert (await asked).status is Status.OK


async def test_a_first_attempt_is_not_stored_behind_the_second(shop: Shop) -> None:
    asked = await shop.ask()
    shop.wire.reconnect()
    [again] = await shop.stored()
    assert again.attempt == 2
    shop.say(NAK)
    await asyncio.sleep(0.05)
    assert len(shop.lanes.stored) == 1
    shop.answer()
    assert (await asked).status is Status.OK


@pytest.mark.parametrize("early", [-0.001, 0.0, 0.001])
async def test_an_answer_that_comes_as_the_patience_ends_is_not_lost(
    shop: Shop, early: float
) -> None:
    """The process stood still: both are due in the same turn of the loop, in either order."""
    shop.host.full = True  # by the lane
    asked = await shop.ask()
    [features] = shop.lanes.stored
    patience = LONG * KNOBS.missing_after_share
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.call_later(patience - early, shop.answer_to, features)
    loop.call_later(patience - 0.01, loop.stop_for, 0.1)
    before = now()
    result = await asked
    assert (result.status, result.attempt) == (Status.OK, 1)
    assert now() - before < patience + 0.1, "not after another patience"


async def test_a_failure_of_the_first_attempt_does_not_end_the_second(shop: Shop) -> None:
    asked = await shop.ask()
    shop.wire.reconnect()
    await shop.stored()
    shop.answer(0, Status.UNAVAILABLE)
    await asyncio.sleep(0.02)
    assert ([features.attempt for features in shop.lanes.stored], shop.requester.retries) == (
        [2],
        1,
    )
    shop.answer_to(shop.lanes.stored[0])
    assert (await asked).status is Status.OK


@pytest.mark.parametrize("shop", [ALL_HEDGED], indirect=True)
async def test_a_second_copy_that_finds_a_full_lane_leaves_the_first_to_its_answer(
    shop: Shop,
) -> None:
    for _ in range(30):  # how long it usually takes
        asked = await shop.ask(hedge=0.5)
        shop.answer()
        await asked
    shop.lanes.stored.clear()
    shop.lanes.error = ResourceExhausted("full")
    asked = await shop.ask(hedge=0.5)
    [copy] = await shop.stored()
    assert copy.attempt == 2
    await asyncio.sleep(0.002)
    assert not asked.done()
    shop.answer()
    result = await asked
    assert (result.status, result.attempt) == (Status.OK, 1)


@pytest.mark.parametrize("shop", [ALL_HEDGED], indirect=True)
async def test_no_two_attempts_have_one_message_id_though_a_second_copy_is_refused_late(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane would take the later one for a copy of the earlier one, and drop it."""
    change_handover(monkeypatch, least_patience=LONG)
    for _ in range(30):  # how long it usually takes
        asked = await shop.ask(hedge=0.5)
        shop.answer()
        await asked
    shop.lanes.stored.clear()
    shop.lanes.slow = True
    asked = await shop.ask(hedge=0.5)
    await shop.stored()
    shop.wire.reconnect()  # asks again
    await shop.stored(2)
    hedge, again = shop.lanes.acks
    again(None, 1)
    hedge(ResourceExhausted("full"), 0)
    shop.answer_to(shop.lanes.stored[1], Status.UNAVAILABLE)
    *_, last = await shop.stored(3)
    assert [features.attempt for features in shop.lanes.stored] == [2, 3, 4]
    shop.answer_to(last)
    assert (await asked).status is Status.OK


async def test_a_failure_of_a_request_that_was_handed_over_is_asked_again_by_the_lane(
    shop: Shop,
) -> None:
    asked = await shop.ask()
    shop.answer(status=Status.UNAVAILABLE)
    [again] = await shop.stored()
    assert (again.attempt, len(shop.host.sent)) == (2, 1)
    shop.answer()
    assert (await asked).status is Status.OK
    asked = await shop.ask()
    assert len(shop.host.sent) == 2, "a failure is no sign of a process that is late"
    shop.answer()
    assert (await asked).status is Status.OK


async def test_more_requests_than_a_burst_of_the_server_carries_better_go_by_the_lane(
    shop: Shop,
) -> None:
    asked = [await shop.ask() for _ in range(MOST_IN_FLIGHT + 3)]
    shop.wire.gather.end()
    handed = {features.id for features, _ in shop.host.sent}
    stored = {features.id for features in shop.lanes.stored}  # late ones too, on a slow machine
    assert len(handed | stored) == MOST_IN_FLIGHT + 3
    assert len(stored) >= 3
    assert len(shop.host.sent) <= MOST_IN_FLIGHT
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_many_requests_that_are_asked_at_once_go_together(shop: Shop) -> None:
    inputs = {"x": np.ones((1, 4), np.float32)}
    deadline = asyncio.get_running_loop().time() + LONG
    shop.tasks = [
        asyncio.create_task(shop.requester.infer(Ask(INFO, inputs, deadline))) for _ in range(20)
    ]
    await asyncio.sleep(0)
    assert shop.host.together.count(True) == 20 - MOST_ALONE
    for number in range(20):
        shop.answer(number)
    assert {result.status for result in await asyncio.gather(*shop.tasks)} == {Status.OK}
    await asyncio.sleep(0)
    assert not shop.wire.bursting


async def test_a_requester_that_closes_stores_nothing(shop: Shop) -> None:
    asked = await shop.ask(budget=0.1)
    shop.requester.close()
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert all(features.attempt > 1 for features in shop.lanes.stored)
    shop.requester.close()
    assert shop.host.on_gone == []


async def test_fast_mode_keeps_nothing(shop: Shop) -> None:
    asked = await shop.ask(delivery=FAST)
    [(features, reply)] = shop.host.sent
    assert reply == "", "nobody waits for a word"
    shop.host.end(FIRST)
    assert shop.lanes.stored == []
    shop.answer_to(features)
    assert (await asked).status is Status.OK


async def test_without_a_connection_nothing_is_handed_over(shop: Shop) -> None:
    """The process that has it could not pass it on."""
    shop.wire.connected = False
    shop.lanes.at_once = NotConnected("lost")
    asked = await shop.ask(budget=0.02)
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert shop.host.sent == []
