"""A requester keeps a request that a process of its host has, until the answer comes, and stores it
only if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fake_stage import INFO
from neighbours import FIRST, KNOBS, LONG, Shop
from simulated_desk import now
from support.simulated_time import SimulatedLoop

from swarm.errors import NotConnected, ResourceExhausted, Status, Unavailable
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import FAST, Ask
from swarm.requests.under_way import MOST_ALONE
from swarm.transport.handover import policy
from swarm.transport.handover.words import DONE, PASSED_ON, REFUSED
from swarm.transport.stage_sender import MOST_IN_FLIGHT

ALL_HEDGED = AttemptConfig(hedges_per_request=1.0)

pytestmark = pytest.mark.simulated


@pytest.fixture
def shop() -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(config: AttemptConfig = KNOBS) -> Shop:
        made.append(Shop(config))
        return made[-1]

    yield make
    for each in made:
        assert all(task.done() for task in each.tasks)
        assert each.is_idle()


async def test_an_answered_request_is_never_stored_and_nothing_is_cancelled(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.answer()
    assert (await asked).status is Status.OK
    assert (s.lanes.stored, s.wire.subjects) == ([], [])


async def test_a_refused_request_is_stored_at_once_as_the_same_message_with_the_rest_of_its_budget(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    await asyncio.sleep(0.002)
    s.say(REFUSED)
    [copy], [(first, _)] = s.lanes.stored, s.host.sent
    assert (copy.message_id, copy.reply) == (first.message_id, first.reply)
    assert copy.budget_us == pytest.approx(first.budget_us - 2_000, abs=1)
    s.say(REFUSED)
    s.say(DONE)
    assert len(s.lanes.stored) == 1, "the first word counts"
    s.answer()
    assert (await asked).status is Status.OK
    assert s.wire.subjects == [], "one copy, one answer: nothing to cancel"


async def test_a_request_without_an_answer_in_good_time_is_stored(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    began = now()
    asked = await s.ask()
    await s.stored()
    assert policy.LEAST_PATIENCE < now() - began < policy.MOST_PATIENCE
    assert not asked.done()
    s.answer()
    assert (await asked).status is Status.OK
    assert s.requester.retries == 0
    assert s.wire.subjects == ["swarm.test.cancel.m.1"], "the other copy need not be computed"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_late_request_that_cannot_be_stored_may_still_be_answered(
    shop: Callable[..., Shop], at_once: bool
) -> None:
    """A full lane does not end it: the process that is late has it."""
    s = shop()
    if at_once:
        s.lanes.at_once = NotConnected("lost")
    else:
        s.lanes.error = ResourceExhausted("full")
    asked = await s.ask()
    if not at_once:
        await s.stored()
    await asyncio.sleep(0.05)
    assert not asked.done()
    s.answer()
    assert (await asked).status is Status.OK
    assert (s.requester.retries, s.wire.subjects) == (0, [])


async def test_an_answer_that_comes_while_there_is_no_connection_counts(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    s.lanes.at_once = NotConnected("lost")
    asked = await s.ask()
    s.say(REFUSED)  # and had it in hand, all the same
    await asyncio.sleep(0.02)
    assert not asked.done(), "it waits for a connection"
    s.answer()
    assert (await asyncio.wait_for(asked, 1.0)).status is Status.OK


async def test_the_end_of_the_wait_for_a_connection_is_no_silence_of_the_next_attempt(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    s.lanes.at_once = NotConnected("lost")
    asked = await s.ask()
    s.say(REFUSED)
    await asyncio.sleep(0.02)
    s.lanes.at_once = None
    s.wire.reconnect()
    await s.stored()
    await asyncio.sleep(0.02)
    assert [features.attempt for features in s.lanes.stored] == [2]
    s.answer()
    assert (await asked).status is Status.OK


async def test_a_process_that_is_silent_for_longer_than_a_run_is_asked_whether_it_lives(
    shop: Callable[..., Shop],
) -> None:
    """Of runs as long as the answers say; it does not answer, so the request is stored."""
    s = shop()
    asked = await s.ask()
    s.answer(us=500_000)
    await asked
    asked = await s.ask()
    await s.stored()
    assert len(s.host.asked) == 1
    s.answer()
    assert (await asked).status is Status.OK
    s.wire.forget(s.host.asked[0])  # a second later by itself


async def test_a_request_that_a_later_lane_has_is_not_stored(shop: Callable[..., Shop]) -> None:
    s = shop()
    asked = await s.ask()
    s.say(PASSED_ON)
    await asyncio.sleep(0.05)
    assert s.lanes.stored == []
    s.answer()
    assert (await asked).status is Status.OK


async def test_requests_of_a_process_that_has_ended_are_stored_at_once(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = [await s.ask() for _ in range(3)]
    s.host.end("_INBOX.another")
    assert s.lanes.stored == []
    s.host.end(FIRST)
    assert len(s.lanes.stored) == 3
    for number in range(3):
        s.answer(number)
    assert [(await each).status for each in asked] == [Status.OK] * 3


async def test_a_process_that_refused_is_left_alone_for_a_while_and_then_asked_again(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.say(REFUSED)
    s.answer()
    await asked
    asked = await s.ask()
    assert (len(s.host.sent), len(s.lanes.stored)) == (1, 2)
    s.answer_to(s.lanes.stored[-1])
    await asked
    await asyncio.sleep(policy.REFUSED_PAUSE)
    asked = await s.ask()
    assert (len(s.host.sent), len(s.lanes.stored)) == (2, 2)
    s.answer()
    assert (await asked).status is Status.OK


async def test_a_socket_without_room_costs_no_wait(shop: Callable[..., Shop]) -> None:
    s = shop()
    s.host.full = True
    asked = await s.ask()
    assert len(s.lanes.stored) == 1
    s.answer_to(s.lanes.stored[0])
    assert (await asked).status is Status.OK


async def test_a_request_that_is_given_up_is_cancelled_and_not_stored_later(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert s.wire.subjects == ["swarm.test.cancel.m.1"]
    await asyncio.sleep(0.05)
    assert s.lanes.stored == []


async def test_a_full_lane_behind_a_refusal_is_a_fast_refusal(shop: Callable[..., Shop]) -> None:
    s = shop()
    s.lanes.error = ResourceExhausted("full")
    asked = await s.ask()
    s.say(REFUSED)
    assert (await asked).status is Status.RESOURCE_EXHAUSTED


async def test_a_request_that_could_not_be_stored_is_asked_again(shop: Callable[..., Shop]) -> None:
    s = shop()
    s.lanes.at_once = Unavailable("no")
    asked = await s.ask()
    s.say(REFUSED)
    s.lanes.at_once = None
    [again] = await s.stored()
    assert again.attempt == 2
    s.answer(0)
    assert (await asked).status is Status.OK


async def test_a_defect_in_storing_asks_again(shop: Callable[..., Shop]) -> None:
    s = shop()
    s.lanes.defect = ValueError("a defect")
    asked = await s.ask()
    s.say(REFUSED)
    s.lanes.defect = None
    [again] = await s.stored()
    assert (again.attempt, s.wire.callback_errors) == (2, 1)
    s.answer(0)
    assert (await asked).status is Status.OK


async def test_a_first_attempt_is_not_stored_behind_the_second(shop: Callable[..., Shop]) -> None:
    s = shop()
    asked = await s.ask()
    s.wire.reconnect()
    [again] = await s.stored()
    assert again.attempt == 2
    s.say(REFUSED)
    await asyncio.sleep(0.05)
    assert len(s.lanes.stored) == 1
    s.answer()
    assert (await asked).status is Status.OK


@pytest.mark.parametrize("early", [-0.001, 0.0, 0.001])
async def test_an_answer_that_comes_as_the_patience_ends_is_not_lost(
    shop: Callable[..., Shop], early: float
) -> None:
    """The process stood still: both are due in the same turn of the loop, in either order."""
    s = shop()
    s.host.full = True  # by the lane
    asked = await s.ask()
    [features] = s.lanes.stored
    patience = LONG * KNOBS.missing_after_share
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.call_later(patience - early, s.answer_to, features)
    loop.call_later(patience - 0.01, loop.stop_for, 0.1)
    before = now()
    result = await asked
    assert (result.status, result.attempt) == (Status.OK, 1)
    assert now() - before < patience + 0.1, "not after another patience"


async def test_a_failure_of_the_first_attempt_does_not_end_the_second(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.wire.reconnect()
    await s.stored()
    s.answer(0, Status.UNAVAILABLE)
    await asyncio.sleep(0.02)
    assert ([features.attempt for features in s.lanes.stored], s.requester.retries) == ([2], 1)
    s.answer_to(s.lanes.stored[0])
    assert (await asked).status is Status.OK


async def test_a_second_copy_that_finds_a_full_lane_leaves_the_first_to_its_answer(
    shop: Callable[..., Shop],
) -> None:
    s = shop(ALL_HEDGED)
    for _ in range(30):  # how long it usually takes
        asked = await s.ask(hedge=0.5)
        s.answer()
        await asked
    s.lanes.stored.clear()
    s.lanes.error = ResourceExhausted("full")
    asked = await s.ask(hedge=0.5)
    [copy] = await s.stored()
    assert copy.attempt == 2
    await asyncio.sleep(0.002)
    assert not asked.done()
    s.answer()
    result = await asked
    assert (result.status, result.attempt) == (Status.OK, 1)


async def test_no_two_attempts_have_one_message_id_though_a_second_copy_is_refused_late(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane would take the later one for a copy of the earlier one, and drop it."""
    monkeypatch.setattr(policy, "LEAST_PATIENCE", LONG)
    s = shop(ALL_HEDGED)
    for _ in range(30):  # how long it usually takes
        asked = await s.ask(hedge=0.5)
        s.answer()
        await asked
    s.lanes.stored.clear()
    s.lanes.slow = True
    asked = await s.ask(hedge=0.5)
    await s.stored()
    s.wire.reconnect()  # asks again
    await s.stored(2)
    hedge, again = s.lanes.acks
    again(None, 1)
    hedge(ResourceExhausted("full"), 0)
    s.answer_to(s.lanes.stored[1], Status.UNAVAILABLE)
    *_, last = await s.stored(3)
    assert [features.attempt for features in s.lanes.stored] == [2, 3, 4]
    s.answer_to(last)
    assert (await asked).status is Status.OK


async def test_a_failure_of_a_request_that_was_handed_over_is_asked_again_by_the_lane(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.answer(status=Status.UNAVAILABLE)
    [again] = await s.stored()
    assert (again.attempt, len(s.host.sent)) == (2, 1)
    s.answer()
    assert (await asked).status is Status.OK
    asked = await s.ask()
    assert len(s.host.sent) == 2, "a failure is no sign of a process that is late"
    s.answer()
    assert (await asked).status is Status.OK


async def test_more_requests_than_a_burst_of_the_server_carries_better_go_by_the_lane(
    shop: Callable[..., Shop],
) -> None:
    s = shop()
    asked = [await s.ask() for _ in range(MOST_IN_FLIGHT + 3)]
    s.wire.gather.end()
    handed = {features.id for features, _ in s.host.sent}
    stored = {features.id for features in s.lanes.stored}  # late ones too, on a slow machine
    assert len(handed | stored) == MOST_IN_FLIGHT + 3
    assert len(stored) >= 3
    assert len(s.host.sent) <= MOST_IN_FLIGHT
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_many_requests_that_are_asked_at_once_go_together(shop: Callable[..., Shop]) -> None:
    s = shop()
    inputs = {"x": np.ones((1, 4), np.float32)}
    deadline = asyncio.get_running_loop().time() + LONG
    s.tasks = [
        asyncio.create_task(s.requester.infer(Ask(INFO, inputs, deadline))) for _ in range(20)
    ]
    await asyncio.sleep(0)
    assert s.host.together.count(True) == 20 - MOST_ALONE
    for number in range(20):
        s.answer(number)
    assert {result.status for result in await asyncio.gather(*s.tasks)} == {Status.OK}
    await asyncio.sleep(0)
    assert not s.wire.bursting


async def test_a_requester_that_closes_stores_nothing(shop: Callable[..., Shop]) -> None:
    s = shop()
    asked = await s.ask(budget=0.1)
    s.requester.close()
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert all(features.attempt > 1 for features in s.lanes.stored)
    s.requester.close()
    assert s.host.on_gone == []


async def test_fast_mode_keeps_nothing(shop: Callable[..., Shop]) -> None:
    s = shop()
    asked = await s.ask(delivery=FAST)
    [(features, reply)] = s.host.sent
    assert reply == "", "nobody waits for a word"
    s.host.end(FIRST)
    assert s.lanes.stored == []
    s.answer_to(features)
    assert (await asked).status is Status.OK


async def test_without_a_connection_nothing_is_handed_over(shop: Callable[..., Shop]) -> None:
    """The process that has it could not pass it on."""
    s = shop()
    s.wire.connected = False
    s.lanes.at_once = NotConnected("lost")
    asked = await s.ask(budget=0.02)
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert s.host.sent == []
