"""The requester against a real server and a stage that answers well, badly, twice or never."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from fake_stage import INFO, Desk, FakeStage, answer_at_once, outcome, silent
from real_server import eventually

from swarm.errors import NoResponders, ResourceExhausted, Status, SwarmError, Unavailable
from swarm.flow.hedge import Hedger
from swarm.flow.retry import RetryBudget
from swarm.flow.silence import DOUBT_FOR, LASTING_AFTER, MOST_REPEATS
from swarm.requests.request import CORE, Ask
from swarm.services.embedded import EmbeddedServer
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result

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
    assert desk.idle()


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
    assert desk.idle()


async def test_of_two_answers_the_first_wins(desk: Desk) -> None:
    await desk.open()

    def twice(stage: FakeStage, delivery: Any, features: Features) -> None:
        stage.reply(features, outcome(features, "first"))
        stage.reply(features, outcome(features, "second"))
        delivery.ack()

    desk.stage.behave = twice
    results = [await desk.infer(10.0) for _ in range(20)]
    assert {result.hops[0].node for result in results} == {"first"}
    assert desk.requester.retries == 0
    assert desk.idle()


async def test_an_answer_after_a_failure_changes_nothing(desk: Desk) -> None:
    """A refusal of the input is final, whatever comes behind it."""
    await desk.open()

    def refuse(stage: FakeStage, delivery: Any, features: Features) -> None:
        stage.fail(features, Status.INVALID_ARGUMENT, "a wrong shape")
        stage.reply(features, outcome(features))
        delivery.ack()

    desk.stage.behave = refuse
    result = await desk.infer(10.0)
    assert (result.status, result.message) == (Status.INVALID_ARGUMENT, "a wrong shape")
    assert (result.stage, result.node) == (1, "fake")
    assert len(desk.stage.seen) == 1


async def test_silence_is_asked_again_inside_the_budget_with_the_same_id(desk: Desk) -> None:
    await desk.open()

    def second_time(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features))
        delivery.ack()

    desk.stage.behave = second_time
    began = time.monotonic()
    result = await desk.infer(4.0)
    took = time.monotonic() - began
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert 1.5 < took < 4.0  # two fifths of the budget
    assert desk.stage.attempts == [1, 2]
    assert len({features.id for features in desk.stage.seen}) == 1
    assert desk.stage.seen[1].budget_us < desk.stage.seen[0].budget_us
    assert desk.idle()


async def test_a_stage_that_never_answers_costs_the_budget_and_no_more(desk: Desk) -> None:
    await desk.open()
    desk.stage.behave = silent
    began = time.monotonic()
    result = await desk.infer(0.8)
    assert result.status is Status.DEADLINE_EXCEEDED
    assert 0.7 < time.monotonic() - began < 3.0
    assert "no answer inside the budget" in result.message
    assert 1 <= len(desk.stage.seen) <= 4
    assert desk.idle()


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
    assert desk.requester.gate(INFO).shed == 0
    assert desk.idle()


async def test_an_unavailable_stage_is_asked_again_until_it_is_there(desk: Desk) -> None:
    await desk.open()

    def third_time(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt < 3:
            stage.fail(features, Status.UNAVAILABLE)
        else:
            stage.reply(features, outcome(features))
        delivery.ack()

    desk.stage.behave = third_time
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 3)
    assert desk.stage.attempts == [1, 2, 3]


async def test_the_retry_budget_bounds_what_is_asked_again(desk: Desk) -> None:
    """When everything fails, retries must not multiply the load: a tenth beyond the reserve."""
    await desk.open()

    def fail(stage: FakeStage, delivery: Any, features: Features) -> None:
        stage.fail(features, Status.UNAVAILABLE)
        delivery.ack()

    desk.stage.behave = fail
    desk.requester._budget = RetryBudget(ratio=0.1, min_per_s=0.5)  # a reserve of five
    results = [await desk.infer(20.0) for _ in range(12)]
    assert {result.status for result in results} == {Status.UNAVAILABLE}
    refused_at_the_gate = desk.requester.gate(results and desk.ask(1.0).info).refused
    first = 12 - refused_at_the_gate
    assert first >= 5
    assert len(desk.stage.seen) - first <= 6
    assert desk.requester.retries <= 6 + 1
    assert desk.idle()


async def test_a_request_that_was_lost_without_a_retry_left_still_takes_a_late_answer(
    desk: Desk,
) -> None:
    await desk.open()
    desk.requester._budget = RetryBudget(ratio=0.0, min_per_s=0.0)

    def late(stage: FakeStage, delivery: Any, features: Features) -> None:
        asyncio.get_running_loop().call_later(1.2, stage.reply, features, outcome(features))
        delivery.ack()

    desk.stage.behave = late
    result = await desk.infer(10.0 / 4)  # asked again after one second, were there a retry
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

    def garbage_first(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt == 1:
            stage.link.publish(features.reply, garbage)
        else:
            stage.reply(features, outcome(features))
        delivery.ack()

    desk.stage.behave = garbage_first
    result = await desk.infer(10.0)
    assert (result.status, result.attempt) == (Status.OK, 2)
    assert desk.link.callback_errors == 0
    assert desk.idle()


@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_nothing_but_garbage_is_said_to_be_so_and_no_hang(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Without a pause between attempts the budget ends while one is on its way."""
    await desk.open()
    monkeypatch.setattr("swarm.requests.requester.Backoff.next", lambda _: pause)
    desk.requester._budget = RetryBudget(ratio=0.0, min_per_s=10_000.0)

    def only_garbage(stage: FakeStage, delivery: Any, features: Features) -> None:
        stage.link.publish(features.reply, b"\x80")
        delivery.ack()

    desk.stage.behave = only_garbage
    result = await desk.infer(1.0)
    assert result.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
    assert "cannot be read" in result.message
    assert desk.idle()


async def test_a_budget_that_ends_in_a_second_attempt_is_no_refusal(desk: Desk) -> None:
    """What the first was refused for is told; no stage is blamed for it."""
    await desk.open()

    def refused_then_silent(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt == 1:
            stage.fail(features, Status.UNAVAILABLE, "a claim was recycled")
        delivery.ack()

    desk.stage.behave = refused_then_silent
    for _ in range(8):
        result = await desk.infer(0.15)
        assert result.status is Status.DEADLINE_EXCEEDED
        assert result.stage == 0
    assert "a claim was recycled" in result.message


async def test_an_answer_for_another_id_is_not_taken(desk: Desk) -> None:
    await desk.open()

    def confused(stage: FakeStage, delivery: Any, features: Features) -> None:
        stage.reply(features, outcome(features, "wrong", request_id="somebody-else"))
        stage.reply(features, outcome(features, "right"))
        delivery.ack()

    desk.stage.behave = confused
    result = await desk.infer(10.0)
    assert (result.status, result.hops[0].node) == (Status.OK, "right")


async def test_answers_that_nobody_asked_for_are_harmless(desk: Desk) -> None:
    await desk.open()
    kept: list[Features] = []

    def remember(stage: FakeStage, delivery: Any, features: Features) -> None:
        kept.append(features)
        answer_at_once(stage, delivery, features)

    desk.stage.behave = remember
    await desk.infer(10.0)
    for _ in range(50):
        desk.stage.reply(kept[0], outcome(kept[0]))
    await desk.stage.link.flush()
    assert (await desk.infer(10.0, 3.0)).outputs["x"][0, 0] == 6.0
    assert desk.link.callback_errors == 0


async def test_a_full_lane_is_a_fast_refusal(desk: Desk) -> None:
    """Eight wait; the ninth is told at once, not after its budget."""
    await desk.open(lane=True)
    desk.stage.lane.pause()
    desk.stage.behave = lambda stage, delivery, features: None  # holds what it has
    waiting = [asyncio.ensure_future(desk.infer(8.0)) for _ in range(8)]
    publisher = desk.requester._outgoing._publisher
    await eventually(lambda: not publisher._waiting and len(desk.requester._asks) == 8)
    desk.requester.gate(INFO)._pace = 0.125  # seconds from one answer to the next
    began = time.monotonic()
    result = await desk.infer(8.0)
    assert result.status is Status.RESOURCE_EXHAUSTED
    assert "full" in result.message
    assert result.retry_after == 0.125, "there is room when the next one is answered"
    assert time.monotonic() - began < 2.0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert desk.idle()  # what is cancelled leaves nothing either


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


async def test_fast_mode_is_answered_without_a_lane(desk: Desk) -> None:
    await desk.open(lane=False, fresh=True)
    results = [await desk.infer(10.0, float(n), delivery=CORE) for n in range(20)]
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(20)]
    assert desk.idle()


async def test_fast_mode_with_nobody_listening_is_unavailable_far_inside_the_budget(
    desk: Desk,
) -> None:
    await desk.open(lane=False, fresh=False)
    began = time.monotonic()
    first = await desk.infer(60.0, delivery=CORE)
    assert first.status is Status.UNAVAILABLE
    assert "no node serves" in first.message
    assert time.monotonic() - began < 15.0  # about 2.5 s on a quiet machine: its retries
    began = time.monotonic()
    others = [await desk.infer(60.0, delivery=CORE) for _ in range(10)]
    assert {result.status for result in others} == {Status.UNAVAILABLE}
    assert time.monotonic() - began < 15.0  # no retries are left
    assert desk.idle()


async def test_fast_mode_asks_again_what_a_dead_stage_took_with_it(desk: Desk) -> None:
    await desk.open(lane=False, fresh=True)
    await desk.learn()
    lost = []

    def lose_first(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt == 1:
            lost.append(features)
        else:
            answer_at_once(stage, delivery, features)

    desk.stage.behave = lose_first
    began = time.monotonic()
    result = await desk.infer(20.0, delivery=CORE)
    assert (result.status, len(lost)) == (Status.OK, 1)
    assert time.monotonic() - began < 5.0
    assert result.attempt >= 2


async def test_fast_mode_outlasts_a_stage_that_hangs_and_asks_little_meanwhile(desk: Desk) -> None:
    """All that is sent meanwhile is lost, and answered as soon as anything is; the budget for
    retries alone would be spent by then."""
    await desk.open(lane=False, fresh=True)
    await desk.learn()
    swallowed: list[int] = []
    desk.stage.behave = lambda stage, delivery, features: swallowed.append(features.attempt)
    asking = [asyncio.create_task(desk.infer(30.0, delivery=CORE)) for _ in range(40)]
    await asyncio.sleep(1.0)
    assert not any(task.done() for task in asking)
    retries = sum(attempt > 1 for attempt in swallowed)
    assert 1 <= retries < 40, "a few ask for all"
    desk.stage.behave = answer_at_once
    results = await asyncio.wait_for(asyncio.gather(*asking), 20.0)
    assert {result.status for result in results} == {Status.OK}
    assert desk.idle()


async def test_fast_mode_goes_by_the_lanes_while_nothing_else_answers(desk: Desk) -> None:
    """There somebody covers for a stage that hangs long before gossip knows of it."""
    await desk.open(fresh=True)
    await desk.learn()
    swallowed = answered = 0

    def hang(stage: FakeStage, delivery: Any, features: Features) -> None:
        nonlocal swallowed, answered
        if delivery.fresh:
            swallowed += 1
        else:
            answered += 1
            answer_at_once(stage, delivery, features)

    desk.stage.behave = hang
    wave = [desk.infer(30.0, float(n), delivery=CORE) for n in range(40)]
    results = await asyncio.wait_for(asyncio.gather(*wave), 20.0)
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(40)]
    assert swallowed >= 40
    assert answered >= 40
    before = swallowed
    assert (await desk.infer(30.0, delivery=CORE)).attempt == 1, "and so do first attempts now"
    assert swallowed == before
    assert desk.idle()


async def test_what_fast_mode_lost_once_goes_by_a_lane(desk: Desk) -> None:
    """Of two that serve a stage one may hang: each second message is lost, and no silence lasts."""
    await desk.open(fresh=True)
    await desk.learn()
    ways: list[tuple[int, bool]] = []

    def every_other(stage: FakeStage, delivery: Any, features: Features) -> None:
        ways.append((features.attempt, delivery.fresh))
        if not delivery.fresh or len(ways) % 2:
            answer_at_once(stage, delivery, features)

    desk.stage.behave = every_other
    for number in range(20):
        result = await desk.infer(10.0, float(number), delivery=CORE)
        assert (result.status, result.attempt <= 2) == (Status.OK, True)
    assert {fresh for attempt, fresh in ways if attempt == 2} == {False}
    assert desk.idle()


async def test_fast_mode_goes_by_the_lanes_when_nobody_listens(desk: Desk) -> None:
    await desk.open(fresh=False)
    began = time.monotonic()
    results = [await desk.infer(30.0, float(n), delivery=CORE) for n in range(20)]
    assert {result.status for result in results} == {Status.OK}
    assert {result.attempt for result in results[1:]} == {1}
    assert time.monotonic() - began < 10.0
    assert desk.idle()


async def test_fast_mode_goes_by_the_lanes_when_a_stage_cannot_serve(desk: Desk) -> None:
    await desk.open(fresh=True)

    def restart(stage: FakeStage, delivery: Any, features: Features) -> None:
        if delivery.fresh:
            stage.fail(features, Status.UNAVAILABLE, "this stage is being restarted")
        else:
            answer_at_once(stage, delivery, features)

    desk.stage.behave = restart
    results = [await desk.infer(30.0, float(n), delivery=CORE) for n in range(100)]
    assert {result.status for result in results} == {Status.OK}, "more than there are retries for"
    assert desk.idle()


@pytest.mark.parametrize(
    "error", [ResourceExhausted("full"), NoResponders("none"), Unavailable("no PubAck")]
)
async def test_a_lane_that_takes_nothing_fails_no_request_of_fast_mode(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: SwarmError
) -> None:
    await desk.open(lane=False, fresh=True)
    tried = 0

    def refuse(subject: str, data: Any, message_id: str, on_stored: Any) -> None:
        nonlocal tried
        tried += 1
        asyncio.get_running_loop().call_soon(on_stored, error, 0)

    monkeypatch.setattr(desk.requester._outgoing._publisher, "publish", refuse)
    desk.requester.gate(INFO).fast.unserved(time.monotonic())
    result = await desk.infer(30.0, 4.0, delivery=CORE)
    assert (result.status, float(result.outputs["x"][0, 0])) == (Status.OK, 8.0)
    assert (tried, result.attempt) == (1, 2)
    seen = len(desk.stage.seen)
    durable = await desk.infer(1.0)
    # What nobody takes is tried again up to the deadline, which may come first.
    assert durable.status in (error.status, Status.DEADLINE_EXCEEDED)
    assert len(desk.stage.seen) == seen, "durable is what it was"
    assert desk.idle()


async def test_what_fast_mode_lost_does_not_stretch_its_patience(desk: Desk) -> None:
    await desk.open(lane=False, fresh=True)
    gate = desk.requester.gate(INFO)

    def lose_first(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt > 1:
            answer_at_once(stage, delivery, features)

    desk.stage.behave = lose_first
    counted = gate.latency.count
    assert (await desk.infer(20.0, delivery=CORE)).attempt > 1
    assert gate.latency.count == counted
    desk.stage.behave = answer_at_once
    await asyncio.sleep(0.01)
    assert (await desk.infer(20.0, delivery=CORE)).attempt == 1
    assert gate.latency.count == counted + 1


async def test_fast_mode_learns_how_long_a_slow_model_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request would be computed twice, for good."""
    await desk.open(fresh=True)
    monkeypatch.setattr("swarm.requests.requester.FRESH_RETRY_AFTER", (3.0, 0.010, 4.0))

    def slow(stage: FakeStage, delivery: Any, features: Features) -> None:
        done = outcome(features)
        hops = (Hop(1, "fake", 1, 200_000, 1),)
        result = Result(done.id, "m", "1", outputs=done.outputs, attempt=done.attempt, hops=hops)
        asyncio.get_running_loop().call_later(0.2, stage.reply, features, result)
        delivery.ack()

    desk.stage.behave = slow
    gate = desk.requester.gate(INFO)
    first = await desk.infer(20.0, delivery=CORE)
    assert (first.attempt, gate.latency.count) == (1, 1)
    assert desk.stage.attempts == [1, 2], "nothing was known yet"
    await asyncio.sleep(0.25)
    for number in range(4):
        assert (await desk.infer(20.0, float(number), delivery=CORE)).status is Status.OK
    assert desk.stage.attempts[2:] == [1] * 4
    assert desk.idle()


async def test_a_lane_that_is_silent_keeps_nobody_from_fast_mode(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.open(fresh=True)
    monkeypatch.setattr("swarm.requests.requester.RETRY_AFTER_SHARE", 0.0)

    def only_fresh(stage: FakeStage, delivery: Any, features: Features) -> None:
        if delivery.fresh:
            answer_at_once(stage, delivery, features)
        else:
            delivery.ack()

    desk.stage.behave = only_fresh
    desk.requester.gate(INFO).fast.unserved(time.monotonic())
    wave = [desk.infer(20.0, float(n), delivery=CORE) for n in range(8)]
    assert {result.status for result in await asyncio.gather(*wave)} == {Status.OK}
    await asyncio.sleep(DOUBT_FOR)
    results = [await desk.infer(20.0, float(n), delivery=CORE) for n in range(8)]
    assert {(result.status, result.attempt) for result in results} == {(Status.OK, 1)}
    assert desk.idle()


async def test_what_fast_mode_loses_is_no_doubt_in_who_serves_durable_requests(desk: Desk) -> None:
    await desk.open(fresh=True)
    gate, now = desk.requester.gate(INFO), time.monotonic()
    for _ in range(LASTING_AFTER):
        gate.fast.silent(now)
    assert gate.fast.doubtful(now)
    assert not gate.silences.doubtful(now)
    gate.fast.heard(now)
    for _ in range(LASTING_AFTER):
        gate.silences.silent(now)
    assert (await desk.infer(10.0, delivery=CORE)).status is Status.OK
    assert gate.silences.lasting, "an answer of fast mode says nothing of them"


async def test_a_refusal_of_what_lay_with_a_stage_that_hung_ends_no_request(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up, and refuses what it cannot queue: somebody else takes that."""
    await desk.open(fresh=True)
    await desk.learn()
    held: list[Features] = []

    def hang(stage: FakeStage, delivery: Any, features: Features) -> None:
        if delivery.fresh:
            held.append(features)
        else:
            asyncio.get_running_loop().call_later(0.2, answer_at_once, stage, delivery, features)

    desk.stage.behave = hang
    asking = [asyncio.create_task(desk.infer(30.0, float(n), delivery=CORE)) for n in range(40)]
    gate = desk.requester.gate(INFO)
    await eventually(lambda: gate.fast.lasting, what="a lasting silence")
    for features in held:
        desk.stage.fail(features, Status.RESOURCE_EXHAUSTED, "64 wait here")
    results = await asyncio.wait_for(asyncio.gather(*asking), 25.0)
    assert {result.status for result in results} == {Status.OK}
    assert desk.idle()


async def test_what_a_hanging_stage_swallowed_is_asked_again_beside_the_retry_budget(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the budget has retries for; and the stage is not flooded when it answers again."""
    await desk.open(lane=False, fresh=True)
    await desk.learn()
    desk.stage.behave = lambda stage, delivery, features: None
    asking = [asyncio.create_task(desk.infer(30.0, delivery=CORE)) for _ in range(60)]
    silences = desk.requester.gate(INFO).fast
    await eventually(lambda: silences.lasting, what="a lasting silence")
    monkeypatch.setattr(RetryBudget, "try_retry", lambda self, now: False)
    monkeypatch.setattr("swarm.requests.requester.FRESH_RETRY_AFTER", (3.0, 2.0, 4.0))
    waiting = most = 0

    def slowly(stage: FakeStage, delivery: Any, features: Features) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        asyncio.get_running_loop().call_later(0.005, done, stage, delivery, features)

    def done(stage: FakeStage, delivery: Any, features: Features) -> None:
        nonlocal waiting
        waiting -= 1
        answer_at_once(stage, delivery, features)

    desk.stage.behave = slowly
    assert (await desk.infer(30.0, delivery=CORE)).status is Status.OK
    results = await asyncio.wait_for(asyncio.gather(*asking), 20.0)
    assert {result.status for result in results} == {Status.OK}
    assert most <= MOST_REPEATS + 1
    assert desk.idle()


async def test_an_answer_that_comes_as_the_patience_ends_is_not_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop was busy: both are due in the same turn."""
    await desk.open(lane=False, fresh=True)
    monkeypatch.setattr("swarm.requests.requester.FRESH_WAIT", 0.02)
    loop = asyncio.get_running_loop()
    for early in (0.0, 0.0005, 0.001, 0.002):
        ask = Ask(INFO, {}, loop.time() + 5.0, CORE)
        waiting = asyncio.create_task(desk.requester._longer(ask, loop))
        await asyncio.sleep(0)
        answer = Result(ask.id, INFO.model, INFO.version)

        def come(ask: Ask = ask, answer: Result = answer) -> None:
            ask.settle(answer)
            time.sleep(0.005)  # a long turn

        loop.call_later(0.02 - early, come)
        assert await waiting in (answer, None)
        if ask.outcome is not None and ask.outcome.result() is answer:
            assert waiting.result() is answer


async def test_hedges_are_few_even_when_everything_is_slow(desk: Desk) -> None:
    """At most about a twentieth more, though each request is slower than the usual."""
    await desk.open()
    for _ in range(100):
        await desk.infer(10.0)

    def slow(stage: FakeStage, delivery: Any, features: Features) -> None:
        asyncio.get_running_loop().call_later(0.03, stage.reply, features, outcome(features))
        delivery.ack()

    desk.stage.behave = slow
    for start in range(0, 200, 5):
        wave = [desk.infer(10.0, float(start + n), hedge=0.5) for n in range(5)]
        results = await asyncio.gather(*wave)
        assert {result.status for result in results} == {Status.OK}
    assert 1 <= desk.requester.hedges <= 200 * 0.05 + 1
    assert desk.idle()


async def test_a_hedge_overtakes_a_copy_that_is_stuck(desk: Desk) -> None:
    await desk.open()
    # A budget that the noise of the first requests cannot use up.
    desk.requester._hedger = Hedger(fraction=0.5)
    for _ in range(150):
        await desk.infer(10.0, hedge=1.0)

    def first_copy_is_stuck(stage: FakeStage, delivery: Any, features: Features) -> None:
        if features.attempt > 1:
            stage.reply(features, outcome(features, "hedge"))
        delivery.ack()

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
    assert desk.idle()


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
    assert desk.idle()
    await server.start()
