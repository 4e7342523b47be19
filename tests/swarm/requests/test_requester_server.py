"""The requester and a stage with a real server between them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fake_stage import Desk, FakeStage, Message, answer_at_once, silent, take
from real_server import hang, resume
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import Status
from swarm.requests.attempts import AttemptConfig
from swarm.requests.request import FAST
from swarm.wire.messages import Features

pytestmark = pytest.mark.integration


async def test_an_answer_comes_back_as_it_was_given(real_desk: Desk) -> None:
    desk = await real_desk.open()
    result = await desk.infer(30.0, 21.0, agent="robot", session="s")
    assert result.status is Status.OK
    np.testing.assert_array_equal(result.outputs["x"], np.full((1, 4), 42, np.float32))
    assert (result.attempt, len(result.hops)) == (1, 1)
    assert result.latency > 0
    [features] = desk.stage.seen
    assert (features.agent, features.session, features.stage) == ("robot", "s", 1)
    assert 0 < features.budget_us <= 30_000_000
    assert desk.is_idle()


async def test_many_requests_at_once_each_get_their_own_answer(real_desk: Desk) -> None:
    desk = await real_desk.open(fast=True)
    results = []
    # Half of what the lane holds: the last wave's answers came before its acks were settled.
    for start in range(0, 64, 4):
        wave = [desk.infer(30.0, float(start + n)) for n in range(4)]
        results += await asyncio.gather(*wave)
    fast = [desk.infer(30.0, float(n), delivery=FAST) for n in range(64, 96)]
    results += await asyncio.gather(*fast)
    assert {r.status for r in results} == {Status.OK}, [r.message for r in results]
    values = [float(result.outputs["x"][0, 0]) for result in results]
    assert values == [2.0 * n for n in range(96)]
    assert len({result.id for result in results}) == 96
    assert desk.is_idle()


async def test_in_fast_mode_the_server_says_that_nobody_listens(
    real_desk: Desk,
) -> None:
    desk = await real_desk.open(lane=False, config=AttemptConfig(retries_per_second=0.0))
    result = await desk.infer(60.0, delivery=FAST)
    assert result.status is Status.UNAVAILABLE
    assert "no node serves" in result.message
    assert desk.is_idle()


async def test_after_a_reconnect_what_was_asked_is_sent_again(
    real_desk: Desk, own_server: EmbeddedServer
) -> None:
    """The server kept the lane in memory and died: same id, another attempt, one answer."""
    desk = await real_desk.open()
    desk.stage.behave = silent
    task = asyncio.create_task(desk.infer(60.0, 5.0))
    await eventually(lambda: len(desk.stage.seen) == 1)
    desk.stage.behave = answer_at_once
    await own_server.kill()
    await own_server.start()
    result = await task
    assert (result.status, float(result.outputs["x"][0, 0])) == (Status.OK, 10.0)
    assert result.attempt >= 2
    assert len({features.id for features in desk.stage.seen}) == 1
    assert desk.is_idle()


async def test_silence_opens_a_breaker_only_where_the_server_can_be_heard(
    real_desk: Desk, own_server: EmbeddedServer
) -> None:
    """A link that was cut without a word looks like stages that hang."""
    desk = await real_desk.open()
    desk.stage.behave = silent
    stored = [asyncio.create_task(desk.infer(0.3)) for _ in range(8)]
    await eventually(lambda: len(desk.stage.seen) == 8)
    await hang(own_server)
    try:
        unsent = [asyncio.create_task(desk.infer(0.3)) for _ in range(8)]
        results = await asyncio.gather(*stored, *unsent)
        assert {result.status for result in results} == {Status.DEADLINE_EXCEEDED}
        assert not any(result.reached for result in results[8:])
        assert all(own_server.url.removeprefix("nats://") in r.message for r in results[8:])
        assert desk.requester.breakers() == {}
        after = await desk.infer(0.01)
        assert "the server, or the link to it, is away" in after.message
    finally:
        resume(own_server)

    # Where the server can be heard, it is the stages that do not answer.
    async def is_open() -> bool:
        await asyncio.gather(*(desk.infer(0.6) for _ in range(8)))
        return "open" in desk.requester.breakers().values()

    await eventually(is_open)


def bursts(stage: FakeStage, message: Message, features: Features) -> None:
    stage.fail(features, Status.INTERNAL, "it burst")
    take(message)


async def test_an_open_breaker_names_the_failure_that_opened_it(real_desk: Desk) -> None:
    desk = await real_desk.open()
    desk.stage.behave = bursts
    results = [await desk.infer(5.0) for _ in range(6)]
    assert results[0].status is Status.INTERNAL
    assert "circuit breaker is open" in results[-1].message
    assert results[0].message in results[-1].message
