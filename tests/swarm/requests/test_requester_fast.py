"""Fast mode: nothing is stored between stages; only the requester recovers a lost request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fake_stage import Desk, FakeStage, Message, answer_at_once, is_fast, outcome, take
from real_server import eventually

from swarm.errors import NoResponders, ResourceExhausted, Status, SwarmError, Unavailable
from swarm.flow.retry import RetryBudget
from swarm.flow.silence import DOUBT_FOR, LASTING_AFTER, MOST_REPEATS
from swarm.lanes import Publisher
from swarm.requests import attempts
from swarm.requests.request import FAST
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result

pytestmark = pytest.mark.integration


async def test_fast_mode_is_answered_without_a_lane(desk: Desk) -> None:
    await desk.open(lane=False, fast=True)
    results = [await desk.infer(10.0, float(n), delivery=FAST) for n in range(20)]
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(20)]
    assert desk.is_idle()


async def test_fast_mode_with_nobody_listening_is_unavailable_far_inside_the_budget(
    desk: Desk,
) -> None:
    await desk.open(lane=False, fast=False)
    began = time.monotonic()
    first = await desk.infer(60.0, delivery=FAST)
    assert first.status is Status.UNAVAILABLE
    assert "no node serves" in first.message
    assert time.monotonic() - began < 15.0  # about 2.5 s on a quiet machine: its retries
    began = time.monotonic()
    others = [await desk.infer(60.0, delivery=FAST) for _ in range(10)]
    assert {result.status for result in others} == {Status.UNAVAILABLE}
    assert time.monotonic() - began < 15.0  # no retries are left
    assert desk.is_idle()


async def test_fast_mode_asks_again_for_requests_that_a_dead_stage_took_with_it(desk: Desk) -> None:
    await desk.open(lane=False, fast=True)
    await desk.learn()
    lost = []

    def lose_first(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt == 1:
            lost.append(features)
        else:
            answer_at_once(stage, message, features)

    desk.stage.behave = lose_first
    began = time.monotonic()
    result = await desk.infer(20.0, delivery=FAST)
    assert (result.status, len(lost)) == (Status.OK, 1)
    assert time.monotonic() - began < 5.0
    assert result.attempt >= 2


async def test_fast_mode_outlasts_a_stage_that_hangs_and_asks_little_meanwhile(desk: Desk) -> None:
    """All that is sent meanwhile is lost, and answered as soon as anything is; the budget for
    retries alone would be spent by then."""
    await desk.open(lane=False, fast=True)
    await desk.learn()
    swallowed: list[int] = []
    desk.stage.behave = lambda stage, message, features: swallowed.append(features.attempt)
    asking = [asyncio.create_task(desk.infer(30.0, delivery=FAST)) for _ in range(40)]
    await asyncio.sleep(1.0)
    assert not any(task.done() for task in asking)
    retries = sum(attempt > 1 for attempt in swallowed)
    assert 1 <= retries < 40, "a few ask for all"
    desk.stage.behave = answer_at_once
    results = await asyncio.wait_for(asyncio.gather(*asking), 20.0)
    assert {result.status for result in results} == {Status.OK}
    assert desk.is_idle()


async def test_fast_mode_goes_by_the_lanes_while_nothing_else_answers(desk: Desk) -> None:
    """There somebody covers for a stage that hangs long before gossip knows of it."""
    await desk.open(fast=True)
    await desk.learn()
    swallowed = answered = 0

    def hang(stage: FakeStage, message: Message, features: Features) -> None:
        nonlocal swallowed, answered
        if is_fast(message):
            swallowed += 1
        else:
            answered += 1
            answer_at_once(stage, message, features)

    desk.stage.behave = hang
    wave = [desk.infer(30.0, float(n), delivery=FAST) for n in range(40)]
    results = await asyncio.wait_for(asyncio.gather(*wave), 20.0)
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(40)]
    assert swallowed >= 40
    assert answered >= 40
    before = swallowed
    assert (await desk.infer(30.0, delivery=FAST)).attempt == 1, "and so do first attempts now"
    assert swallowed == before
    assert desk.is_idle()


async def test_a_request_that_fast_mode_lost_once_goes_by_a_lane(desk: Desk) -> None:
    """Of two that serve a stage one may hang: each second message is lost, and no silence lasts."""
    await desk.open(fast=True)
    await desk.learn()
    ways: list[tuple[int, bool]] = []

    def every_other(stage: FakeStage, message: Message, features: Features) -> None:
        ways.append((features.attempt, is_fast(message)))
        if not is_fast(message) or len(ways) % 2:
            answer_at_once(stage, message, features)

    desk.stage.behave = every_other
    for number in range(20):
        result = await desk.infer(10.0, float(number), delivery=FAST)
        assert (result.status, result.attempt <= 2) == (Status.OK, True)
    assert {fresh for attempt, fresh in ways if attempt == 2} == {False}
    assert desk.is_idle()


async def test_fast_mode_goes_by_the_lanes_when_nobody_listens(desk: Desk) -> None:
    await desk.open(fast=False)
    began = time.monotonic()
    results = [await desk.infer(30.0, float(n), delivery=FAST) for n in range(20)]
    assert {result.status for result in results} == {Status.OK}
    assert {result.attempt for result in results[1:]} == {1}
    assert time.monotonic() - began < 10.0
    assert desk.is_idle()


async def test_fast_mode_goes_by_the_lanes_when_a_stage_cannot_serve(desk: Desk) -> None:
    await desk.open(fast=True)

    def restart(stage: FakeStage, message: Message, features: Features) -> None:
        if is_fast(message):
            stage.fail(features, Status.UNAVAILABLE, "this stage is being restarted")
        else:
            answer_at_once(stage, message, features)

    desk.stage.behave = restart
    results = [await desk.infer(30.0, float(n), delivery=FAST) for n in range(100)]
    assert {result.status for result in results} == {Status.OK}, "more than there are retries for"
    assert desk.is_idle()


@pytest.mark.parametrize(
    "error", [ResourceExhausted("full"), NoResponders("none"), Unavailable("no PubAck")]
)
async def test_a_lane_that_takes_nothing_fails_no_request_of_fast_mode(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: SwarmError
) -> None:
    await desk.open(lane=False, fast=True)
    tried = 0

    def refuse(_: Publisher, subject: str, data: Any, message_id: str, on_stored: Any) -> None:
        nonlocal tried
        tried += 1
        asyncio.get_running_loop().call_soon(on_stored, error, 0)

    monkeypatch.setattr(Publisher, "publish", refuse)
    desk.admission.fast.unserved(time.monotonic())
    result = await desk.infer(30.0, 4.0, delivery=FAST)
    assert (result.status, float(result.outputs["x"][0, 0])) == (Status.OK, 8.0)
    assert (tried, result.attempt) == (1, 2)
    seen = len(desk.stage.seen)
    durable = await desk.infer(1.0)
    # What nobody takes is tried again up to the deadline, which may come first.
    assert durable.status in (error.status, Status.DEADLINE_EXCEEDED)
    assert len(desk.stage.seen) == seen, "durable is what it was"
    assert desk.is_idle()


async def test_a_lost_request_does_not_stretch_the_patience_of_fast_mode(
    desk: Desk,
) -> None:
    await desk.open(lane=False, fast=True)
    admission = desk.admission

    def lose_first(stage: FakeStage, message: Message, features: Features) -> None:
        if features.attempt > 1:
            answer_at_once(stage, message, features)

    desk.stage.behave = lose_first
    counted = admission.latency.count
    assert (await desk.infer(20.0, delivery=FAST)).attempt > 1
    assert admission.latency.count == counted
    desk.stage.behave = answer_at_once
    await asyncio.sleep(0.01)
    assert (await desk.infer(20.0, delivery=FAST)).attempt == 1
    assert admission.latency.count == counted + 1


async def test_fast_mode_learns_how_long_a_slow_model_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request would be computed twice, for good."""
    monkeypatch.setattr(attempts, "FAST_MISSING_AFTER_LEAST", 0.010)
    await desk.open(fast=True)

    def slow(stage: FakeStage, message: Message, features: Features) -> None:
        done = outcome(features)
        hops = (Hop(1, "fake", 1, 200_000, 1),)
        result = Result(done.id, "m", "1", outputs=done.outputs, attempt=done.attempt, hops=hops)
        asyncio.get_running_loop().call_later(0.2, stage.reply, features, result)
        take(message)

    desk.stage.behave = slow
    admission = desk.admission
    first = await desk.infer(20.0, delivery=FAST)
    assert (first.attempt, admission.latency.count) == (1, 1)
    assert desk.stage.attempts == [1, 2], "nothing was known yet"
    await asyncio.sleep(0.25)
    for number in range(4):
        assert (await desk.infer(20.0, float(number), delivery=FAST)).status is Status.OK
    assert desk.stage.attempts[2:] == [1] * 4
    assert desk.is_idle()


async def test_a_silent_lane_keeps_no_request_from_fast_mode(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MISSING_AFTER_SHARE", 0.0)
    await desk.open(fast=True)

    def only_fast(stage: FakeStage, message: Message, features: Features) -> None:
        if is_fast(message):
            answer_at_once(stage, message, features)
        else:
            take(message)

    desk.stage.behave = only_fast
    desk.admission.fast.unserved(time.monotonic())
    wave = [desk.infer(20.0, float(n), delivery=FAST) for n in range(8)]
    assert {result.status for result in await asyncio.gather(*wave)} == {Status.OK}
    await asyncio.sleep(DOUBT_FOR)
    results = [await desk.infer(20.0, float(n), delivery=FAST) for n in range(8)]
    assert {(result.status, result.attempt) for result in results} == {(Status.OK, 1)}
    assert desk.is_idle()


async def test_losses_of_fast_mode_raise_no_doubt_about_durable_requests(desk: Desk) -> None:
    await desk.open(fast=True)
    admission, now = desk.admission, time.monotonic()
    for _ in range(LASTING_AFTER):
        admission.fast.silent(now)
    assert admission.fast.doubtful(now)
    assert not admission.silences.doubtful(now)
    admission.fast.heard(now)
    for _ in range(LASTING_AFTER):
        admission.silences.silent(now)
    assert (await desk.infer(10.0, delivery=FAST)).status is Status.OK
    assert admission.silences.lasting, "an answer of fast mode says nothing of them"


async def test_the_refusals_of_a_stage_that_hung_end_no_request(desk: Desk) -> None:
    """It wakes up, and refuses what it cannot queue: somebody else takes that."""
    await desk.open(fast=True)
    await desk.learn()
    held: list[Features] = []

    def hang(stage: FakeStage, message: Message, features: Features) -> None:
        if is_fast(message):
            held.append(features)
        else:
            asyncio.get_running_loop().call_later(0.2, answer_at_once, stage, message, features)

    desk.stage.behave = hang
    asking = [asyncio.create_task(desk.infer(30.0, float(n), delivery=FAST)) for n in range(40)]
    admission = desk.admission
    await eventually(lambda: admission.fast.lasting, what="a lasting silence")
    for features in held:
        desk.stage.fail(features, Status.RESOURCE_EXHAUSTED, "64 wait here")
    results = await asyncio.wait_for(asyncio.gather(*asking), 25.0)
    assert {result.status for result in results} == {Status.OK}
    assert desk.is_idle()


async def test_requests_that_a_hanging_stage_swallowed_are_repeated_beside_the_retry_budget(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the budget has retries for; and the stage is not flooded when it answers again."""
    await desk.open(lane=False, fast=True)
    await desk.learn()
    desk.stage.behave = lambda stage, message, features: None
    asking = [asyncio.create_task(desk.infer(30.0, delivery=FAST)) for _ in range(60)]
    silences = desk.admission.fast
    await eventually(lambda: silences.lasting, what="a lasting silence")
    monkeypatch.setattr(RetryBudget, "has_retry", lambda self, now: False)
    monkeypatch.setattr(attempts, "FAST_MISSING_AFTER_LEAST", 2.0)
    waiting = most = 0

    def slowly(stage: FakeStage, message: Message, features: Features) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        asyncio.get_running_loop().call_later(0.005, done, stage, message, features)

    def done(stage: FakeStage, message: Message, features: Features) -> None:
        nonlocal waiting
        waiting -= 1
        answer_at_once(stage, message, features)

    desk.stage.behave = slowly
    assert (await desk.infer(30.0, delivery=FAST)).status is Status.OK
    results = await asyncio.wait_for(asyncio.gather(*asking), 20.0)
    assert {result.status for result in results} == {Status.OK}
    assert most <= MOST_REPEATS + 1
    assert desk.is_idle()
