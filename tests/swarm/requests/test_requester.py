"""The requester before a stage that answers well, badly, twice or never, in simulated time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fake_stage import INFO, outcome
from simulated_desk import (
    DEPTH,
    TRIP,
    Behaviour,
    Message,
    SimulatedDesk,
    SimulatedStage,
    answer_at_once,
    answers_after,
    later,
    now,
    silent,
)

from swarm.errors import NotAdmitted, NotConnected, Status
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import Ask
from swarm.wire.hops import PRIORITIES, Hop
from swarm.wire.messages import Features
from swarm.wire.urgency import HIGH, IN_USE_FOR, LOW, NORMAL

KNOBS = AttemptConfig()

pytestmark = pytest.mark.simulated


async def test_of_two_answers_the_first_wins(desk: SimulatedDesk) -> None:
    def twice(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.reply(features, outcome(features, "first"))
        stage.reply(features, outcome(features, "second"))
        message.done()

    desk.stage.behave = twice
    results = [await desk.infer(10.0) for _ in range(20)]
    assert {result.hops[0].node for result in results} == {"first"}
    assert desk.requester.retries == 0


async def test_an_answer_after_a_failure_changes_nothing(desk: SimulatedDesk) -> None:
    """A refusal of the input is final, whatever comes behind it."""

    def refuse(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.fail(features, Status.INVALID_ARGUMENT, "a wrong shape")
        stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = refuse
    result = await desk.infer(10.0)
    assert (result.status, result.message) == (Status.INVALID_ARGUMENT, "a wrong shape")
    assert (result.stage, result.node) == (1, "fake")
    assert len(desk.stage.seen) == 1


@pytest.mark.parametrize("works", [True, False], ids=["a stage that works", "a broken stage"])
async def test_requests_that_cannot_be_computed_cost_others_nothing(
    desk: SimulatedDesk, works: bool
) -> None:
    """A stage that works says so by its hop. Where it does not, its breaker opens."""

    def fail(stage: SimulatedStage, message: Message, features: Features) -> None:
        if works:
            hop = {"stage": 1, "node": "fake", "queue_us": 0, "compute_us": 0}
            features.hops.append(hop)
        stage.fail(features, Status.INTERNAL, "an index behind the table's end")
        message.done()

    desk.stage.behave = fail
    failed = [await desk.infer(10.0) for _ in range(40)]
    desk.stage.behave = answer_at_once
    assert (await desk.infer(10.0)).status is (Status.OK if works else Status.UNAVAILABLE)
    told = {result.status for result in failed}
    assert told == ({Status.INTERNAL} if works else {Status.INTERNAL, Status.UNAVAILABLE})


async def test_who_asks_again_at_once_behind_a_refusal_keeps_nobody_from_the_loop(
    desk: SimulatedDesk,
) -> None:
    def fail(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.fail(features, Status.INTERNAL, "broken")
        message.done()

    desk.stage.behave = fail
    while (await desk.infer(10.0)).status is not Status.UNAVAILABLE:
        pass
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(100):
        assert (await desk.infer(10.0)).status is Status.UNAVAILABLE
    beside.cancel()
    assert turns >= 100


async def test_silence_is_asked_again_inside_the_budget_with_the_same_id(
    desk: SimulatedDesk,
) -> None:
    def second_time(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = second_time
    began = now()
    result = await desk.infer(4.0)
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert now() - began == pytest.approx(4.0 * KNOBS.missing_after_share + 2 * TRIP)
    assert result.latency == pytest.approx(now() - began)
    assert desk.stage.attempts == [1, 2]
    first, second = desk.stage.seen
    assert first.id == second.id
    assert second.budget_us == pytest.approx(first.budget_us * (1 - KNOBS.missing_after_share))
    assert desk.server.cancelled == [result.id], "the first attempt need not be computed"


async def test_a_request_that_was_answered_at_once_cancels_nothing(desk: SimulatedDesk) -> None:
    assert {(await desk.infer(10.0)).status for _ in range(20)} == {Status.OK}
    assert desk.server.cancelled == []


async def test_a_request_that_its_caller_gives_up_is_cancelled(desk: SimulatedDesk) -> None:
    desk.stage.behave = silent
    ask = desk.ask(30.0)
    task = asyncio.create_task(desk.requester.infer(ask))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait({task})
    assert (desk.server.cancelled, desk.stage.attempts) == ([ask.id], [1])


async def test_what_a_lost_lane_had_is_asked_again_as_soon_as_it_takes_messages_again(
    desk: SimulatedDesk,
) -> None:
    desk.stage.behave = lambda stage, message, features: None
    first = desk.begin(60.0)
    await asyncio.sleep(1.0)
    desk.lanes.lose()
    second = desk.begin(60.0)
    await asyncio.sleep(1.0)  # which nobody takes
    assert desk.stage.attempts == [1]
    desk.stage.behave = answer_at_once
    desk.lanes.exists = True
    began = now()
    assert {(await task).status for task in (first, second)} == {Status.OK}
    # By its budget alone the first one would be asked again after 24 seconds.
    assert now() - began < 2 * KNOBS.longest_pause


async def test_a_stage_that_never_answers_costs_the_budget_and_no_more(
    desk: SimulatedDesk,
) -> None:
    desk.stage.behave = silent
    began = now()
    result = await desk.infer(0.8)
    assert result.status is Status.DEADLINE_EXCEEDED
    assert now() - began == pytest.approx(0.8)
    assert "no answer inside the budget" in result.message
    assert desk.stage.attempts == [1, 2, 3]


def unavailable_after(seconds: float) -> Behaviour:
    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        later(seconds, stage.fail, features, Status.UNAVAILABLE, "not now")
        message.done()

    return behave


@pytest.mark.parametrize("budget", [0.05, 0.3, 0.5, 0.77, 1.0])
async def test_a_stage_that_always_answers_unavailable_is_so_whenever_the_budget_ends(
    desk: SimulatedDesk, budget: float
) -> None:
    desk.stage.behave = unavailable_after(0.03)
    began = now()
    result = await desk.infer(budget)
    assert (result.status, result.message) == (Status.UNAVAILABLE, "not now")
    assert now() - began <= budget + 0.001
    assert len(desk.stage.attempts) > 1


@pytest.mark.parametrize("late", [0.0, 0.001, 5.0])
async def test_a_budget_that_is_over_before_anything_is_sent_is_no_overload(
    desk: SimulatedDesk, late: float
) -> None:
    result = await desk.infer(-late)
    assert (result.status, result.retry_after) == (Status.DEADLINE_EXCEEDED, 0.0), result.message
    assert "before the request was sent" in result.message
    assert (result.attempt, desk.stage.seen, desk.lanes.tries) == (0, [], 0)
    assert desk.admission.shed == 0


async def test_an_unavailable_stage_is_asked_again_until_it_is_there(desk: SimulatedDesk) -> None:
    def third_time(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.attempt < 3:
            stage.fail(features, Status.UNAVAILABLE)
        else:
            stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = third_time
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 3)
    assert desk.stage.attempts == [1, 2, 3]


async def test_the_retry_budget_bounds_how_often_failing_requests_are_asked_again() -> None:
    """When everything fails, retries must not multiply the load: a tenth beyond the reserve."""
    desk = SimulatedDesk(AttemptConfig(retries_per_second=0.5))  # a reserve of five

    def fail(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.fail(features, Status.UNAVAILABLE)
        message.done()

    desk.stage.behave = fail
    results = [await desk.infer(20.0) for _ in range(12)]
    assert {result.status for result in results} == {Status.UNAVAILABLE}
    first = 12 - desk.admission.refused
    assert first >= 5
    assert len(desk.stage.seen) - first <= 6
    assert desk.requester.retries <= 6
    assert desk.is_idle()


async def test_a_request_that_was_lost_without_a_retry_left_still_takes_a_late_answer() -> None:
    desk = SimulatedDesk(AttemptConfig(retries_per_second=0.0))
    desk.stage.behave = answers_after(1.2)
    result = await desk.infer(2.5)  # asked again after one second, were there a retry
    assert result.status is Status.OK
    assert desk.stage.attempts == [1]


async def test_a_failure_ends_no_request_of_which_an_earlier_attempt_may_still_be_answered() -> (
    None
):
    """One node is woken and fails, and another one has the first attempt."""
    desk = SimulatedDesk(AttemptConfig(retries_per_second=0.1))  # a reserve of one

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        message.done()
        if features.attempt == 1:
            later(3.0, stage.reply, features, outcome(features))
        else:
            stage.fail(features, Status.UNAVAILABLE)

    desk.stage.behave = behave
    result = await desk.infer(5.0)
    assert (result.status, result.attempt) == (Status.OK, 1)
    assert desk.stage.attempts == [1, 2]


async def test_an_answer_right_behind_the_last_failure_counts() -> None:
    """A node that wakes fails the first attempt, which another one has finished: both words come in
    one turn of the loop."""
    desk = SimulatedDesk(AttemptConfig(retries_per_second=0.1))

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        message.done()
        seconds = 3.0 if features.attempt == 1 else 0.0
        later(seconds, stage.fail, features, Status.UNAVAILABLE)
        if features.attempt == 1:
            later(seconds + 1e-10, stage.reply, features, outcome(features))

    desk.stage.behave = behave
    assert (await desk.infer(5.0)).status is Status.OK


async def test_a_request_ends_with_the_failure_of_its_last_attempt_that_lives() -> None:
    desk = SimulatedDesk(AttemptConfig(retries_per_second=0.1))

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        message.done()
        seconds = 3.0 if features.attempt == 1 else 0.0
        later(seconds, stage.fail, features, Status.UNAVAILABLE)

    desk.stage.behave = behave
    began = now()
    result = await desk.infer(5.0)
    assert result.status is Status.UNAVAILABLE
    assert now() - began == pytest.approx(3.0, abs=0.1), "and not with its budget"


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x80",
        b"not MessagePack",
        b"\xc1" * 100,
        b"\x81\xa1v\x02",
        b"\x00" * 200_000,
        b"\xdf\xff\xff\xff\xff",
    ],
)
async def test_garbage_as_an_answer_is_as_good_as_lost(desk: SimulatedDesk, garbage: bytes) -> None:
    """It is asked again: the requester's own argument was fine."""

    def garbage_first(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.attempt == 1:
            stage.say(features, garbage)
        else:
            stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = garbage_first
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert desk.server.callback_errors == 0


@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_nothing_but_garbage_is_said_to_be_so_and_no_hang(pause: float) -> None:
    """Without a pause between attempts the budget ends while one is on its way."""
    knobs = AttemptConfig(pause=pause, longest_pause=pause, retries_per_second=10_000.0)
    desk = SimulatedDesk(knobs)

    def only_garbage(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.say(features, b"\x80")
        message.done()

    desk.stage.behave = only_garbage
    result = await desk.infer(1.0)
    assert result.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
    assert "cannot be read" in result.message
    assert desk.is_idle()


async def test_a_budget_that_ends_in_a_second_attempt_is_no_refusal(desk: SimulatedDesk) -> None:
    """What the first was refused for is told; no stage is blamed for it."""

    def refused_then_silent(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.attempt == 1:
            stage.fail(features, Status.UNAVAILABLE, "a claim was recycled")
        message.done()

    desk.stage.behave = refused_then_silent
    for _ in range(8):
        result = await desk.infer(0.15)
        assert result.status is Status.DEADLINE_EXCEEDED
        assert result.stage == 0
    assert "a claim was recycled" in result.message


async def test_an_answer_for_another_id_is_not_taken(desk: SimulatedDesk) -> None:
    def confused(stage: SimulatedStage, message: Message, features: Features) -> None:
        stage.reply(features, outcome(features, "wrong", request_id="somebody-else"))
        stage.reply(features, outcome(features, "right"))
        message.done()

    desk.stage.behave = confused
    result = await desk.infer(10.0)
    assert (result.status, result.hops[0].node) == (Status.OK, "right")


async def test_answers_that_nobody_asked_for_are_harmless(desk: SimulatedDesk) -> None:
    await desk.infer(10.0)
    [old] = desk.stage.seen
    for _ in range(50):
        desk.stage.reply(old, outcome(old))
    assert (await desk.infer(10.0, 3.0)).outputs["x"][0, 0] == 6.0
    assert desk.server.callback_errors == 0


async def test_a_full_lane_is_a_fast_refusal_that_says_when_there_is_room(
    desk: SimulatedDesk,
) -> None:
    """As many wait as it holds; the next is told at once, not after its budget: there is room when
    the next one is answered."""

    def in_turn(stage: SimulatedStage, message: Message, features: Features) -> None:
        later(0.005 * (1 + len(stage.seen) % 8), answer_at_once, stage, message, features)

    desk.stage.behave = in_turn
    await asyncio.gather(*(desk.infer(8.0) for _ in range(DEPTH)))  # the pace of answers is seen
    assert desk.admission.answer_interval > 0
    desk.stage.behave = lambda stage, message, features: None  # holds all that it gets
    waiting = [desk.begin(8.0) for _ in range(DEPTH)]
    await asyncio.sleep(0.1)
    began = now()
    result = await desk.infer(8.0)
    assert result.status is Status.RESOURCE_EXHAUSTED
    assert "full" in result.message
    assert result.retry_after == desk.admission.answer_interval
    assert now() - began == pytest.approx(2 * TRIP)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_model_without_lanes_is_unavailable_and_recovers_when_they_appear(
    desk: SimulatedDesk,
) -> None:
    desk.lanes.exists = False
    task = desk.begin(20.0)
    await asyncio.sleep(5.0)
    assert not task.done()
    desk.lanes.exists = True
    began = now()
    assert (await task).status is Status.OK
    assert now() - began < 2 * KNOBS.longest_pause


async def test_hedges_are_few_even_when_everything_is_slow(desk: SimulatedDesk) -> None:
    """At most about a twentieth more, though each request is slower than the usual."""
    for _ in range(100):
        await desk.infer(10.0)
    desk.stage.behave = answers_after(0.03)
    for start in range(0, 200, 5):
        wave = [desk.infer(10.0, float(start + n), hedge=0.5) for n in range(5)]
        assert {result.status for result in await asyncio.gather(*wave)} == {Status.OK}
    assert 1 <= desk.requester.hedges <= 200 * 0.05 + 1


async def test_a_hedge_overtakes_a_copy_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = SimulatedDesk(AttemptConfig(hedges_per_request=0.5))
    for _ in range(150):
        await desk.infer(10.0, hedge=1.0)

    def first_copy_is_stuck(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features, "hedge"))
        message.done()

    before = desk.requester.hedges
    desk.stage.behave = first_copy_is_stuck
    began = now()
    result = await desk.infer(20.0, hedge=0.9)
    assert (result.status, result.hops[0].node) == (Status.OK, "hedge")
    assert now() - began < 0.01  # a retry would come after eight seconds
    assert desk.requester.hedges == before + 1


async def test_a_request_made_while_there_is_no_server_waits_for_one(desk: SimulatedDesk) -> None:
    desk.server.cut()
    task = desk.begin(30.0)
    await asyncio.sleep(10.0)
    assert not task.done()
    began = now()
    desk.server.reconnect()
    assert (await task).status is Status.OK
    assert now() - began == pytest.approx(2 * TRIP)


async def test_while_the_server_refuses_who_connects_a_request_asks_with_pauses(
    desk: SimulatedDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    async def refused(timeout: float | None = None) -> None:
        asked.append(now())
        if len(asked) > 1000:
            await asyncio.Event().wait()  # without a pause the time would stand still
        raise NotAdmitted("revoked")

    monkeypatch.setattr(desk.server, "ready", refused)
    desk.server.cut()
    result = await desk.infer(1.0)
    assert result.status is Status.UNAVAILABLE
    assert 2 < len(asked) < 100
    desk.server.reconnect()


async def test_what_was_asked_before_a_reconnect_is_asked_again_at_once(
    desk: SimulatedDesk,
) -> None:
    """The server kept the lane in memory and died: same id, another attempt, one answer."""
    desk.stage.behave = silent
    task = desk.begin(60.0)
    await asyncio.sleep(1.0)
    desk.server.cut()
    desk.lanes.lose()
    desk.stage.behave = answer_at_once
    await asyncio.sleep(1.0)
    desk.lanes.exists = True
    began = now()
    desk.server.reconnect()
    result = await task
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert now() - began == pytest.approx(2 * TRIP)  # its own retry would come after 24 s
    assert len({features.id for features in desk.stage.seen}) == 1


async def test_without_any_server_the_budget_is_the_bound(desk: SimulatedDesk) -> None:
    desk.server.cut()
    began = now()
    result = await desk.infer(0.5)
    assert result.status in (Status.DEADLINE_EXCEEDED, NotConnected.status)
    assert now() - began <= 0.5


async def test_a_request_of_an_edge_counts_its_own_hops(desk: SimulatedDesk) -> None:
    """What ran before it was sent goes along, and is answered back by the stages."""
    inputs = {"x": np.ones((1, 4), np.float32)}
    hops = [{"stage": 0, "node": "edge", "queue_us": 1, "compute_us": 2, "batch": 1}]
    result = await desk.requester.infer(Ask(INFO, inputs, now() + 1.0, hops=hops))
    [features] = desk.stage.seen
    assert (result.status, features.hops) == (Status.OK, hops)


# --- priorities ---------------------------------------------------------------------------------


def one_at_a_time(seconds: float, tells: bool = False) -> Behaviour:
    """A stage that computes one request after the other. tells: that it has seen priorities."""
    free = 0.0

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        nonlocal free
        begins = max(free, now())
        free = begins + seconds
        result = outcome(features)
        extra = {PRIORITIES: True} if tells else {}
        queue = int((begins - now()) * 1e6)
        result.hops = (Hop(1, "fake", queue, int(seconds * 1e6), 1, extra),)
        later(free - now(), stage.reply, features, result)
        later(free - now(), message.done)

    return behave


async def ended_in_order(desk: SimulatedDesk, *asked: tuple[str, int]) -> list[str]:
    """The names, in the order of their answers."""
    order: list[str] = []

    async def ask(name: str, urgency: int) -> None:
        assert (await desk.infer(60.0, urgency=urgency)).status is Status.OK
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name, urgency in asked:
            group.create_task(ask(name, urgency))
    return order


async def test_a_high_request_passes_all_that_are_not_under_way(desk: SimulatedDesk) -> None:
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    await desk.infer(10.0, urgency=HIGH)
    order = await ended_in_order(desk, *[("normal", NORMAL)] * 60, *[("high", HIGH)] * 2)
    assert [at for at, name in enumerate(order) if name == "high"][-1] <= 10
    assert len(order) == 62


async def test_low_requests_wait_and_do_not_starve(desk: SimulatedDesk) -> None:
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    asked = [("low", LOW)] * 12 + [("normal", NORMAL)] * 60
    order = await ended_in_order(desk, *asked)
    lows = [at for at, name in enumerate(order) if name == "low"]
    assert lows[3] < 30 < lows[-1]


async def test_a_requester_hears_from_a_stage_that_others_use_priorities(
    desk: SimulatedDesk,
) -> None:
    """So its own requests wait at it, and not in the lane, where nobody could pass them."""
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(desk.infer(60.0)) for _ in range(40)]
        await asyncio.sleep(0.01)
        assert len(desk.lanes.held) == len(asked)  # nobody waits at a requester
    desk.stage.behave = one_at_a_time(0.1, tells=True)
    await desk.infer(10.0)
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(desk.infer(60.0))
        await asyncio.sleep(0.01)
        assert len(desk.lanes.held) < 8


async def test_a_request_whose_turn_does_not_come_in_time_says_so(desk: SimulatedDesk) -> None:
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    await desk.infer(10.0, urgency=HIGH)
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(desk.infer(60.0))
        await asyncio.sleep(0.01)
        ended = await desk.infer(0.5)
    assert (ended.status, ended.reached) == (Status.DEADLINE_EXCEEDED, False)
    assert "before the request's turn" in ended.message
    assert not desk.admission.breakers


async def test_a_request_that_is_given_up_while_it_waits_takes_no_turn(
    desk: SimulatedDesk,
) -> None:
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    await desk.infer(10.0, urgency=HIGH)
    tasks = [desk.begin(60.0) for _ in range(40)]
    await asyncio.sleep(0.01)
    for task in tasks[1:]:
        task.cancel()
    begun = now()
    assert (await desk.infer(60.0)).status is Status.OK
    assert now() - begun < 1.5
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_while_a_stage_is_away_no_turn_is_lost(desk: SimulatedDesk) -> None:
    desk.lanes.depth = 1000
    held: list[tuple[Message, Features]] = []
    desk.stage.behave = one_at_a_time(0.01)
    await desk.infer(10.0, urgency=HIGH)
    desk.stage.behave = lambda stage, message, features: held.append((message, features))
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(desk.infer(60.0)) for _ in range(40)]
        await asyncio.sleep(1.0)
        behave = desk.stage.behave = one_at_a_time(0.01)
        for message, features in held:
            behave(desk.stage, message, features)
    assert {task.result().status for task in asked} == {Status.OK}


async def test_the_gate_goes_when_nobody_uses_priorities(desk: SimulatedDesk) -> None:
    desk.lanes.depth = 1000
    desk.stage.behave = one_at_a_time(0.1)
    await desk.infer(10.0, urgency=HIGH)
    await asyncio.sleep(IN_USE_FOR + 0.1)
    desk.requester.tend()
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(desk.infer(60.0))
        await asyncio.sleep(0.01)
        assert len(desk.lanes.held) == 40
