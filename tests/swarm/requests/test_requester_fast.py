"""Fast mode: nothing is stored between stages; only the requester recovers a lost request."""

from __future__ import annotations

import asyncio
import random
from math import inf

import pytest
from simulated_desk import (
    TRIP,
    Message,
    SimulatedDesk,
    SimulatedStage,
    answer_at_once,
    answers_after,
    later,
    now,
)

from swarm.errors import NoResponders, ResourceExhausted, Status, SwarmError, Unavailable
from swarm.requests import silence
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import FAST
from swarm.requests.retry import RetryBudget
from swarm.wire.messages import Features

KNOBS = AttemptConfig()

pytestmark = pytest.mark.simulated


def only_later(stage: SimulatedStage, message: Message, features: Features) -> None:
    """First attempts are lost."""
    if features.attempt > 1:
        answer_at_once(stage, message, features)


async def test_fast_mode_is_answered_without_a_lane(desk: SimulatedDesk) -> None:
    desk.lanes.exists = False
    results = [await desk.infer(10.0, float(n), delivery=FAST) for n in range(20)]
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(20)]
    assert desk.lanes.tries == 0


async def test_fast_mode_with_nobody_listening_is_unavailable_far_inside_the_budget(
    desk: SimulatedDesk,
) -> None:
    desk.lanes.exists = desk.fast = False
    began = now()
    first = await desk.infer(60.0, delivery=FAST)
    assert first.status is Status.UNAVAILABLE
    assert "no node serves" in first.message
    assert KNOBS.unserved_for < now() - began < 5.0, "its retries"
    began = now()
    others = [await desk.infer(60.0, delivery=FAST) for _ in range(10)]
    assert {result.status for result in others} == {Status.UNAVAILABLE}
    assert now() - began < 10 * (KNOBS.unserved_for + 0.5), "no retries are left"


async def test_fast_mode_asks_again_for_requests_that_a_dead_stage_took_with_it(
    desk: SimulatedDesk,
) -> None:
    desk.lanes.exists = False
    await desk.learn()
    desk.stage.behave = only_later
    began = now()
    result = await desk.infer(20.0, delivery=FAST)
    assert result.status is Status.OK
    assert now() - began == pytest.approx(KNOBS.fast_missing_after + 4 * TRIP)
    assert result.attempt == 3, "the lane was asked, and refused"


async def test_fast_mode_outlasts_a_stage_that_hangs_and_asks_little_meanwhile(
    desk: SimulatedDesk,
) -> None:
    """All that is sent meanwhile is lost, and answered as soon as anything is; the budget for
    retries alone would be spent by then."""
    desk.lanes.exists = False
    await desk.learn()
    swallowed: list[int] = []
    desk.stage.behave = lambda stage, message, features: swallowed.append(features.attempt)
    asking = [desk.begin(30.0, delivery=FAST) for _ in range(40)]
    await asyncio.sleep(1.0)
    assert not any(task.done() for task in asking)
    retries = sum(attempt > 1 for attempt in swallowed)
    assert 1 <= retries < 40, "a few ask for all"
    desk.stage.behave = answer_at_once
    began = now()
    assert {result.status for result in await asyncio.gather(*asking)} == {Status.OK}
    assert now() - began < 1.0


async def test_fast_mode_goes_by_the_lanes_while_nothing_else_answers(desk: SimulatedDesk) -> None:
    """There somebody covers for a stage that hangs long before gossip knows of it."""
    await desk.learn()
    swallowed = answered = 0

    def hang(stage: SimulatedStage, message: Message, features: Features) -> None:
        nonlocal swallowed, answered
        if message.fast:
            swallowed += 1
        else:
            answered += 1
            answer_at_once(stage, message, features)

    desk.stage.behave = hang
    began = now()
    wave = [desk.infer(30.0, float(n), delivery=FAST) for n in range(40)]
    results = await asyncio.gather(*wave)
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(40)]
    assert now() - began < 1.0
    assert swallowed >= 40
    assert answered >= 40
    before = swallowed
    assert (await desk.infer(30.0, delivery=FAST)).attempt == 1, "and so do first attempts now"
    assert swallowed == before


async def test_a_request_that_fast_mode_lost_once_goes_by_a_lane(desk: SimulatedDesk) -> None:
    """Of two that serve a stage one may hang: each second message is lost, and no silence lasts."""
    await desk.learn()
    ways: list[tuple[int, bool]] = []

    def every_other(stage: SimulatedStage, message: Message, features: Features) -> None:
        ways.append((features.attempt, message.fast))
        if not message.fast or len(ways) % 2:
            answer_at_once(stage, message, features)

    desk.stage.behave = every_other
    for number in range(20):
        result = await desk.infer(10.0, float(number), delivery=FAST)
        assert (result.status, result.attempt <= 2) == (Status.OK, True)
    assert {fresh for attempt, fresh in ways if attempt == 2} == {False}


async def test_fast_mode_goes_by_the_lanes_when_nobody_listens(desk: SimulatedDesk) -> None:
    desk.fast = False
    began = now()
    results = [await desk.infer(30.0, float(n), delivery=FAST) for n in range(20)]
    assert {result.status for result in results} == {Status.OK}
    assert {result.attempt for result in results[1:]} == {1}
    assert now() - began < 0.1


async def test_fast_mode_goes_by_the_lanes_when_a_stage_cannot_serve(desk: SimulatedDesk) -> None:
    def restart(stage: SimulatedStage, message: Message, features: Features) -> None:
        if message.fast:
            stage.fail(features, Status.UNAVAILABLE, "this stage is being restarted")
        else:
            answer_at_once(stage, message, features)

    desk.stage.behave = restart
    results = [await desk.infer(30.0, float(n), delivery=FAST) for n in range(100)]
    assert {result.status for result in results} == {Status.OK}, "more than there are retries for"


@pytest.mark.parametrize(
    "error", [ResourceExhausted("full"), NoResponders("none"), Unavailable("no PubAck")]
)
async def test_a_lane_that_takes_nothing_fails_no_request_of_fast_mode(
    desk: SimulatedDesk, error: SwarmError
) -> None:
    desk.lanes.error = error
    desk.admission.fast.unserved(now())
    result = await desk.infer(30.0, 4.0, delivery=FAST)
    assert (result.status, float(result.outputs["x"][0, 0])) == (Status.OK, 8.0)
    assert (desk.lanes.tries, result.attempt) == (1, 2)
    seen = len(desk.stage.seen)
    durable = await desk.infer(1.0)
    # What nobody takes is tried again up to the deadline, which may come first.
    assert durable.status in (error.status, Status.DEADLINE_EXCEEDED)
    assert len(desk.stage.seen) == seen, "durable is what it was"


async def test_a_lost_request_does_not_stretch_the_patience_of_fast_mode(
    desk: SimulatedDesk,
) -> None:
    desk.lanes.exists = False
    admission = desk.admission
    desk.stage.behave = only_later
    counted = admission.latency.count
    assert (await desk.infer(20.0, delivery=FAST)).attempt > 1
    assert admission.latency.count == counted
    desk.stage.behave = answer_at_once
    assert (await desk.infer(20.0, delivery=FAST)).attempt == 1
    assert admission.latency.count == counted + 1


async def test_fast_mode_learns_how_long_a_slow_model_takes(desk: SimulatedDesk) -> None:
    """Else each request would be computed twice, for good."""
    desk.stage.behave = answers_after(0.2)
    admission = desk.admission
    first = await desk.infer(20.0, delivery=FAST)
    assert (first.attempt, admission.latency.count) == (1, 1)
    assert desk.stage.attempts == [1, 2], "nothing was known yet"
    await asyncio.sleep(0.25)
    for number in range(4):
        assert (await desk.infer(20.0, float(number), delivery=FAST)).status is Status.OK
    assert desk.stage.attempts[2:] == [1] * 4


async def test_a_silent_lane_keeps_no_request_from_fast_mode(desk: SimulatedDesk) -> None:
    def only_fast(stage: SimulatedStage, message: Message, features: Features) -> None:
        if message.fast:
            answer_at_once(stage, message, features)
        else:
            message.done()

    desk.stage.behave = only_fast
    desk.admission.fast.unserved(now())
    wave = [desk.infer(20.0, float(n), delivery=FAST) for n in range(8)]
    assert {result.status for result in await asyncio.gather(*wave)} == {Status.OK}
    await asyncio.sleep(silence.DOUBT_FOR)
    results = [await desk.infer(20.0, float(n), delivery=FAST) for n in range(8)]
    assert {(result.status, result.attempt) for result in results} == {(Status.OK, 1)}


async def test_losses_of_fast_mode_raise_no_doubt_about_durable_requests(
    desk: SimulatedDesk,
) -> None:
    admission = desk.admission
    for _ in range(silence.LASTING_AFTER):
        admission.fast.silent(now())
    assert admission.fast.doubtful(now())
    assert not admission.silences.doubtful(now())
    admission.fast.answered(now())
    for _ in range(silence.LASTING_AFTER):
        admission.silences.silent(now())
    assert (await desk.infer(10.0, delivery=FAST)).status is Status.OK
    assert admission.silences.lasting, "an answer of fast mode says nothing of them"


async def test_the_refusals_of_a_stage_that_hung_end_no_request(desk: SimulatedDesk) -> None:
    """It wakes up, and refuses what it cannot queue: somebody else takes that."""
    await desk.learn()
    held: list[Features] = []

    def hang(stage: SimulatedStage, message: Message, features: Features) -> None:
        if message.fast:
            held.append(features)
        else:
            later(0.2, answer_at_once, stage, message, features)

    desk.stage.behave = hang
    asking = [desk.begin(30.0, float(n), delivery=FAST) for n in range(40)]
    await asyncio.sleep(0.1)
    assert desk.admission.fast.lasting
    for features in held:
        desk.stage.fail(features, Status.RESOURCE_EXHAUSTED, "64 wait here")
    assert {result.status for result in await asyncio.gather(*asking)} == {Status.OK}


async def test_requests_that_a_hanging_stage_swallowed_are_repeated_beside_the_retry_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than the budget has retries for; and the stage is not flooded when it answers again."""
    desk = SimulatedDesk(AttemptConfig(fast_missing_after=2.0))
    desk.lanes.exists = False
    await desk.learn()
    desk.stage.behave = lambda stage, message, features: None
    asking = [desk.begin(30.0, delivery=FAST) for _ in range(60)]
    await asyncio.sleep(2.1)
    assert desk.admission.fast.lasting
    monkeypatch.setattr(RetryBudget, "has_retry", lambda self, now: False)
    waiting = most = 0

    def slowly(stage: SimulatedStage, message: Message, features: Features) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        later(0.005, done, stage, message, features)

    def done(stage: SimulatedStage, message: Message, features: Features) -> None:
        nonlocal waiting
        waiting -= 1
        answer_at_once(stage, message, features)

    desk.stage.behave = slowly
    assert (await desk.infer(30.0, delivery=FAST)).status is Status.OK
    assert {result.status for result in await asyncio.gather(*asking)} == {Status.OK}
    assert most <= silence.REPEATS + 1


@pytest.mark.parametrize("held", [4, 8, 32])
@pytest.mark.parametrize("seed", range(4))
async def test_a_hung_node_costs_no_request_though_the_client_was_never_busy_before(
    desk: SimulatedDesk, held: int, seed: int
) -> None:
    """The node swallows what comes in fast mode until another one covers, and holds as many of the
    lane's messages for an ack_wait. The first young request that the other node answers is no sign
    of how fast the pipeline is."""
    rng = random.Random(seed)
    hung_at = inf
    kept = 0

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        nonlocal kept
        if hung_at < now() < hung_at + 0.6 and message.fast:
            return
        answer = answers_after(0.02 * rng.lognormvariate(0.0, 0.6))
        if now() > hung_at and not message.fast and kept < held:
            kept += 1
            later(1.2, answer, stage, message, features)
        else:
            answer(stage, message, features)

    desk.lanes.depth = 64
    desk.stage.behave = behave
    asked = []
    for number in range(200):
        if number == 30:
            hung_at = now() + rng.uniform(0.0, 0.1)
        asked.append(desk.begin(10.0, float(number), delivery=FAST))
        await asyncio.sleep(0.02)
    results = await asyncio.gather(*asked)
    assert {result.status for result in results} == {Status.OK}
    assert [float(r.outputs["x"][0, 0]) for r in results] == [2.0 * n for n in range(200)]
