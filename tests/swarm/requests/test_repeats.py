"""A client that asks again after silence, with the same id, does not make a node work twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from swarm.errors import DeadlineExceeded, Unavailable
from swarm.requests.repeats import Repeats
from swarm.wire.messages import Request, Result

ONE = Request({"x": np.ones(3, np.float32)}, "r", agent="a", budget=5.0)


class Work:
    """Requests that are computed until `end`."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.end = asyncio.Event()
        self.repeats = Repeats(self._answer)

    async def _answer(self, model: str, request: Request) -> Result:
        self.asked.append(request)
        number = len(self.asked)
        await self.end.wait()
        if request.session == "fails":
            raise Unavailable("nobody serves")
        return Result(request.id, model, message=str(number))

    async def answers(self, *requests: Request) -> list[Result | BaseException]:
        tasks = [asyncio.create_task(self.repeats.answer("m", each)) for each in requests]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.end.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_same_request_joins_the_one_that_runs_whatever_budget_it_has() -> None:
    work = Work()
    first, second = await work.answers(ONE, replace(ONE, budget=1.0, traceparent="other"))
    assert first == second
    assert first is not second
    assert len(work.asked) == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, id=""),
        replace(ONE, id="other"),
        replace(ONE, agent="another"),
        replace(ONE, session="s"),
        replace(ONE, version="2"),
        replace(ONE, weights=3),
        replace(ONE, outputs=("y",)),
        replace(ONE, key="another client's secret"),
        replace(ONE, inputs={"x": np.zeros(3, np.float32)}),
        replace(ONE, inputs={"x": np.ones(3, np.int32)}),
        replace(ONE, inputs={"x": np.ones((3, 1), np.float32)}),
        replace(ONE, inputs={"y": np.ones(3, np.float32)}),
    ],
    ids=lambda request: f"{request.id}{request.agent}{request.session}{request.version}",
)
async def test_a_request_that_differs_is_its_own(other: Request) -> None:
    work = Work()
    await work.answers(ONE, other)
    assert work.asked == [ONE, other]


async def test_a_failure_is_told_to_all_and_asked_again_is_tried_again() -> None:
    work = Work()
    failing = replace(ONE, session="fails")
    told = await work.answers(failing, replace(failing))
    assert [type(each) for each in told] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        await work.repeats.answer("m", failing)
    assert len(work.asked) == 2


async def test_one_that_has_joined_waits_no_longer_than_its_own_budget() -> None:
    work = Work()
    first = asyncio.create_task(work.repeats.answer("m", ONE))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded):
        await work.repeats.answer("m", replace(ONE, budget=0.01))
    work.end.set()
    assert (await first).message == "1"


async def test_an_answer_is_not_kept() -> None:
    work = Work()
    await work.answers(ONE)
    assert (await work.repeats.answer("m", ONE)).message == "2"
