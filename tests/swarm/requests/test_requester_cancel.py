"""A requester tells the mesh what it no longer waits for, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from fake_stage import SUBJECTS, Desk, FakeStage, Message, outcome, silent, take
from real_server import eventually

from swarm.errors import Status
from swarm.wire.messages import Features

pytestmark = pytest.mark.integration


async def watch(desk: Desk) -> list[str]:
    """The ids that are cancelled from now on."""
    seen: list[str] = []
    subject = SUBJECTS.cancel("m", "1")
    desk.stage.link.subscribe(subject, lambda message: seen.append(bytes(message.data).decode()))
    await desk.stage.link.flush()
    return seen


def only_the_second(stage: FakeStage, message: Message, features: Features) -> None:
    """The first attempt is lost somewhere."""
    if features.attempt > 1:
        stage.reply(features, outcome(features))
    take(message)


async def test_when_a_later_attempt_was_answered_the_earlier_is_cancelled(desk: Desk) -> None:
    await desk.open()
    seen = await watch(desk)
    desk.stage.behave = only_the_second
    result = await desk.infer(3.0)
    assert (result.status, result.attempt) == (Status.OK, 2)
    await eventually(lambda: seen == [result.id])


async def test_a_request_that_its_caller_gives_up_is_cancelled(desk: Desk) -> None:
    await desk.open()
    seen = await watch(desk)
    desk.stage.behave = silent
    ask = desk.ask(30.0)
    task = asyncio.ensure_future(desk.requester.infer(ask))
    await eventually(lambda: len(desk.stage.seen) == 1)
    task.cancel()
    await eventually(lambda: seen == [ask.id])
    assert desk.is_idle()


async def test_a_request_that_was_answered_at_once_cancels_nothing(desk: Desk) -> None:
    await desk.open()
    seen = await watch(desk)
    for _ in range(20):
        assert (await desk.infer(10.0)).status is Status.OK
    await desk.link.flush()
    await desk.stage.link.flush()
    assert seen == []
