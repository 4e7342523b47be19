"""The requester against a real server and a stage that answers well, badly, twice or never."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import numpy as np
import pytest
from fake_stage import (
    INFO,
    SUBJECTS,
    Desk,
    FakeStage,
    Message,
    answer_at_once,
    outcome,
    silent,
    take,
)
from real_server import eventually

from swarm.errors import Status
from swarm.flow.hedge import Hedger
from swarm.lanes import LaneOptions, ensure_lanes
from swarm.link import jetstream
from swarm.requests import requester
from swarm.requests.request import Ask
from swarm.services.embedded import EmbeddedServer
from swarm.subjects import api
from swarm.wire.messages import Features

pytestmark = pytest.mark.integration


async def test_an_answer_comes_back_as_it_was_given(desk: Desk) -> None:
    await desk.open()
    result = await desk.infer(10.0, 21.0, agent="robot", session="s")
    assert result.status is Status.OK
    np.testing.assert_array_equal(result.outputs["x"], np.full((1, 4), 42, np.float32))
    assert (result.attempt, len(result.hops)) == (1, 1)
    assert result.latency > 0
    [features] = desk.stage.seen
    assert (features.agent, features.session, features.stage) == ("robot", "s", 1)
    assert 0 < features.budget_us <= 10_000_000
    assert desk.is_idle()


async def test_many_requests_at_once_each_get_their_own_answer(desk: Desk) -> None:
    await desk.open()
    results = []
    # Half of what the lane holds: the last wave's answers came before its acks were settled.
    for start in range(0, 64, 4):
        wave = [desk.infer(20.0, float(start + n)) for n in range(4)]
        results += await asyncio.gather(*wave)
    assert {r.status for r in results} == {Status.OK}, [r.message for r in results]
    values = [float(result.outputs["x"][0, 0]) for result in results]
    assert values == [2.0 * n for n in range(64)]
    assert len({result.id for result in results}) == 64
    assert desk.is_idle()


async def test_of_two_answers_the_first_wins(desk: Desk) -> None:
    await desk.open()

    def twice(stage: FakeStage, message: Message, features: Features) -> None:
        stage.reply(features, outcome(features, "first"))
        stage.reply(features, outcome(features, "second"))
        take(message)

    desk.stage.behave = twice
    results = [await desk.infer(10.0) for _ in range(20)]
    assert {result.hops[0].node for result in results} == {"first"}
    assert desk.requester.retries == 0
    assert desk.is_idle()


async def test_an_answer_after_a_failure_changes_nothing(desk: Desk) -> None:
    """A refusal of the input is final, whatever comes behind it."""
    await desk.open()

    def refuse(stage: FakeStage, message: Message, features: Features) -> None:
        stage.fail(features, Status.INVALID_ARGUMENT, "a wrong shape")
        stage.reply(features, outcome(features))
        take(message)

    desk.stage.behave = refuse
    result = await desk.infer(10.0)
    assert (result.status, result.message) == (Status.INVALID_ARGUMENT, "a wrong shape")
    assert (result.stage, result.node) == (1, "fake")
    assert len(desk.stage.seen) == 1


async def test_silence_is_asked_again_inside_the_budget_with_the_same_id(desk: Desk) -> None:
    await desk.open()

    def second_time(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features))
        take(message)

    desk.stage.behave = second_time
    began = time.monotonic()
    result = await desk.infer(4.0)
    took = time.monotonic() - began
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert 1.5 < took < 4.0  # two fifths of the budget
    assert desk.stage.attempts == [1, 2]
    assert len({features.id for features in desk.stage.seen}) == 1
    assert desk.stage.seen[1].budget_us < desk.stage.seen[0].budget_us
    assert desk.is_idle()


async def test_what_a_lost_lane_had_is_asked_again_as_soon_as_it_takes_messages_again(
    desk: Desk,
) -> None:
    await desk.open(lane=False)
    stream = SUBJECTS.stream("m", "1")

    async def holds(messages: int) -> None:
        found = -1
        while found < messages:
            info = await jetstream.call(desk.link, api("STREAM.INFO", stream))
            found = int(info["state"]["messages"])

    await ensure_lanes(desk.link, SUBJECTS, "m", "1", LaneOptions())
    first = asyncio.create_task(desk.infer(60.0))
    async with asyncio.timeout(5.0):
        await holds(1)
        await jetstream.call(desk.link, api("STREAM.DELETE", stream))
        second = asyncio.create_task(desk.infer(60.0))
        await asyncio.sleep(0.05)  # which nobody takes
        await ensure_lanes(desk.link, SUBJECTS, "m", "1", LaneOptions())
        # By its budget alone the first one would be asked again after 24 seconds.
        await holds(2)
    for request in (first, second):
        request.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert desk.is_idle()


async def test_a_stage_that_never_answers_costs_the_budget_and_no_more(desk: Desk) -> None:
    await desk.open()
    desk.stage.behave = silent
    began = time.monotonic()
    result = await desk.infer(0.8)
    assert result.status is Status.DEADLINE_EXCEEDED
    assert 0.7 < time.monotonic() - began < 3.0
    assert "no answer inside the budget" in result.message
    assert 1 <= len(desk.stage.seen) <= 4
    assert desk.is_idle()


@pytest.mark.parametrize("late", [0.0, 0.001, 5.0])
async def test_a_budget_that_is_over_before_anything_is_sent_is_no_overload(
    desk: Desk, late: float
) -> None:
    await desk.open()
    over = asyncio.get_running_loop().time() - late
    result = await desk.requester.infer(Ask(INFO, {"x": np.zeros((1, 4), np.float32)}, over))
    assert (result.status, result.retry_after) == (Status.DEADLINE_EXCEEDED, 0.0), result.message
    assert "before the request was sent" in result.message
    assert (result.attempt, desk.stage.seen) == (0, [])
    assert desk.admission.shed == 0
    assert desk.is_idle()


async def test_an_unavailable_stage_is_asked_again_until_it_is_there(desk: Desk) -> None:
    await desk.open()

    def third_time(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt < 3:
            stage.fail(features, Status.UNAVAILABLE)
        else:
            stage.reply(features, outcome(features))
        take(message)

    desk.stage.behave = third_time
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 3)
    assert desk.stage.attempts == [1, 2, 3]


async def test_the_retry_budget_bounds_how_often_failing_requests_are_asked_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When everything fails, retries must not multiply the load: a tenth beyond the reserve."""
    monkeypatch.setattr(requester, "RETRIES_PER_SECOND", 0.5)  # a reserve of five
    await desk.open()

    def fail(stage: FakeStage, message: Message, features: Features) -> None:
        stage.fail(features, Status.UNAVAILABLE)
        take(message)

    desk.stage.behave = fail
    results = [await desk.infer(20.0) for _ in range(12)]
    assert {result.status for result in results} == {Status.UNAVAILABLE}
    first = 12 - desk.admission.refused
    assert first >= 5
    assert len(desk.stage.seen) - first <= 6
    assert desk.requester.retries <= 6
    assert desk.is_idle()


async def test_a_request_that_was_lost_without_a_retry_left_still_takes_a_late_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requester, "RETRIES_PER_SECOND", 0.0)
    await desk.open()

    def late(stage: FakeStage, message: Message, features: Features) -> None:
        asyncio.get_running_loop().call_later(1.2, stage.reply, features, outcome(features))
        take(message)

    desk.stage.behave = late
    result = await desk.infer(2.5)  # asked again after one second, were there a retry
    assert result.status is Status.OK
    assert desk.stage.attempts == [1]


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
async def test_garbage_as_an_answer_is_as_good_as_lost(desk: Desk, garbage: bytes) -> None:
    """It is asked again: the requester's own argument was fine."""
    await desk.open()

    def garbage_first(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt == 1:
            stage.link.publish(features.reply, garbage)
        else:
            stage.reply(features, outcome(features))
        take(message)

    desk.stage.behave = garbage_first
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert desk.link.callback_errors == 0
    assert desk.is_idle()


@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_nothing_but_garbage_is_said_to_be_so_and_no_hang(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Without a pause between attempts the budget ends while one is on its way."""
    monkeypatch.setattr(requester, "RETRY_PAUSE", pause)
    monkeypatch.setattr(requester, "RETRY_PAUSE_MOST", pause)
    monkeypatch.setattr(requester, "RETRIES_PER_SECOND", 10_000.0)
    await desk.open()

    def only_garbage(stage: FakeStage, message: Message, features: Features) -> None:
        stage.link.publish(features.reply, b"\x80")
        take(message)

    desk.stage.behave = only_garbage
    result = await desk.infer(1.0)
    assert result.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
    assert "cannot be read" in result.message
    assert desk.is_idle()


async def test_a_budget_that_ends_in_a_second_attempt_is_no_refusal(desk: Desk) -> None:
    """What the first was refused for is told; no stage is blamed for it."""
    await desk.open()

    def refused_then_silent(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt == 1:
            stage.fail(features, Status.UNAVAILABLE, "a claim was recycled")
        take(message)

    desk.stage.behave = refused_then_silent
    for _ in range(8):
        result = await desk.infer(0.15)
        assert result.status is Status.DEADLINE_EXCEEDED
        assert result.stage == 0
    assert "a claim was recycled" in result.message


async def test_an_answer_for_another_id_is_not_taken(desk: Desk) -> None:
    await desk.open()

    def confused(stage: FakeStage, message: Message, features: Features) -> None:
        stage.reply(features, outcome(features, "wrong", request_id="somebody-else"))
        stage.reply(features, outcome(features, "right"))
        take(message)

    desk.stage.behave = confused
    result = await desk.infer(10.0)
    assert (result.status, result.hops[0].node) == (Status.OK, "right")


async def test_answers_that_nobody_asked_for_are_harmless(desk: Desk) -> None:
    await desk.open()
    kept: list[Features] = []

    def remember(stage: FakeStage, message: Message, features: Features) -> None:
        kept.append(features)
        answer_at_once(stage, message, features)

    desk.stage.behave = remember
    await desk.infer(10.0)
    for _ in range(50):
        desk.stage.reply(kept[0], outcome(kept[0]))
    await desk.stage.link.flush()
    assert (await desk.infer(10.0, 3.0)).outputs["x"][0, 0] == 6.0
    assert desk.link.callback_errors == 0


async def test_a_full_lane_is_a_fast_refusal_that_says_when_there_is_room(desk: Desk) -> None:
    """Eight wait; the ninth is told at once, not after its budget: there is room when the next one
    is answered."""
    await desk.open()

    def in_turn(stage: FakeStage, message: Message, features: Features) -> None:
        delay = 0.005 * (1 + len(stage.seen) % 8)
        asyncio.get_running_loop().call_later(delay, answer_at_once, stage, message, features)

    desk.stage.behave = in_turn
    await asyncio.gather(*(desk.infer(8.0) for _ in range(8)))  # the pace of answers is seen
    assert desk.admission.pace > 0
    desk.stage.seen.clear()
    desk.stage.behave = lambda stage, message, features: None  # holds all that it gets
    waiting = [asyncio.ensure_future(desk.infer(8.0)) for _ in range(8)]
    await eventually(lambda: len(desk.stage.seen) == 8)
    began = time.monotonic()
    result = await desk.infer(8.0)
    assert result.status is Status.RESOURCE_EXHAUSTED
    assert "full" in result.message
    assert result.retry_after == desk.admission.pace
    assert time.monotonic() - began < 2.0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert desk.is_idle()  # requests that are cancelled leave nothing either


async def test_a_model_without_lanes_is_unavailable_and_recovers_when_they_appear(
    desk: Desk,
) -> None:
    await desk.open(lane=False)
    began = time.monotonic()
    task = asyncio.ensure_future(desk.infer(20.0))
    await asyncio.sleep(0.3)
    assert not task.done()
    life = asyncio.create_task(desk.stage.lane.run())
    result = await task
    assert result.status is Status.OK
    assert time.monotonic() - began < 15.0
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


async def test_hedges_are_few_even_when_everything_is_slow(desk: Desk) -> None:
    """At most about a twentieth more, though each request is slower than the usual."""
    await desk.open()
    for _ in range(100):
        await desk.infer(10.0)

    def slow(stage: FakeStage, message: Message, features: Features) -> None:
        asyncio.get_running_loop().call_later(0.03, stage.reply, features, outcome(features))
        take(message)

    desk.stage.behave = slow
    for start in range(0, 200, 5):
        wave = [desk.infer(10.0, float(start + n), hedge=0.5) for n in range(5)]
        results = await asyncio.gather(*wave)
        assert {result.status for result in results} == {Status.OK}
    assert 1 <= desk.requester.hedges <= 200 * 0.05 + 1
    assert desk.is_idle()


async def test_a_hedge_overtakes_a_copy_that_is_stuck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A budget that the noise of the first requests cannot use up.
    monkeypatch.setattr(requester, "Hedger", partial(Hedger, fraction=0.5))
    await desk.open()
    for _ in range(150):
        await desk.infer(10.0, hedge=1.0)

    def first_copy_is_stuck(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features, "hedge"))
        take(message)

    before = desk.requester.hedges
    desk.stage.behave = first_copy_is_stuck
    began = time.monotonic()
    result = await desk.infer(20.0, hedge=0.9)
    assert (result.status, result.hops[0].node) == (Status.OK, "hedge")
    assert time.monotonic() - began < 6.0  # a retry would come after eight seconds
    assert desk.requester.hedges == before + 1


async def test_after_a_reconnect_what_was_asked_is_sent_again(
    desk: Desk, server: EmbeddedServer
) -> None:
    """The server kept the lane in memory and died: same id, another attempt, one answer."""
    await desk.open()
    desk.stage.behave = silent
    task = asyncio.ensure_future(desk.infer(60.0, 5.0))
    await eventually(lambda: len(desk.stage.seen) == 1)
    desk.stage.behave = answer_at_once
    began = time.monotonic()
    await server.kill()
    await server.start()
    result = await task
    assert (result.status, float(result.outputs["x"][0, 0])) == (Status.OK, 10.0)
    assert result.attempt >= 2
    assert time.monotonic() - began < 20.0  # its own retry would come after 24 s
    assert len({features.id for features in desk.stage.seen}) == 1
    assert desk.is_idle()


async def test_a_request_made_while_there_is_no_server_waits_for_one(
    desk: Desk, server: EmbeddedServer
) -> None:
    await desk.open()
    await server.kill()
    await eventually(lambda: not desk.link.connected)
    task = asyncio.ensure_future(desk.infer(30.0))
    await asyncio.sleep(0.2)
    assert not task.done()
    await server.start()
    assert (await task).status is Status.OK


async def test_without_any_server_the_budget_is_the_bound(
    desk: Desk, server: EmbeddedServer
) -> None:
    await desk.open()
    await server.kill()
    await eventually(lambda: not desk.link.connected)
    began = time.monotonic()
    result = await desk.infer(0.5)
    assert result.status in (Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE)
    assert time.monotonic() - began < 3.0
    assert desk.is_idle()
    await server.start()
