"""Copies of requests cost a request nothing, and what becomes of them is counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from support.waiting import GENEROUS

from swarm.errors import Status
from swarm.models.trials import TriedRequest
from swarm.rollout import plan_of
from swarm.rollout.shadows import Shadows, answered
from swarm.wire.messages import Result

PLAN = plan_of("p1", "2", "10%", guard="agree>0.9", shadow="100%", samples=20)
X = {"x": np.zeros(2, np.float32)}


async def test_a_request_is_answered_though_its_copy_was_given_up_meanwhile() -> None:
    compare: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def request() -> Result:
        compare.cancel()
        return Result("r", "m")

    assert (await answered(request(), compare)).id == "r"


class Rollouts:
    """One rollout that has begun. alike: the comparisons. error: what telling of one raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.alike: list[bool] = []
        self.followed = SimpleNamespace(plan=PLAN, progress=SimpleNamespace(aborted=False, step=0))

    def shadows(self) -> Shadows:
        return Shadows(self.of, self.compared, lambda: 0)  # type: ignore[arg-type]

    def of(self, model: str) -> SimpleNamespace:
        return self.followed

    def compared(self, model: str, plan: str, alike: bool) -> None:
        if self.error is not None:
            raise self.error
        self.alike.append(alike)


async def shadowed(shadows: Shadows, copy_fails: Exception | None = None) -> None:
    """One request is answered, and its copy has come to its end."""
    ended = asyncio.Event()

    async def run(inputs: dict[str, np.ndarray], version: str, budget: float) -> Result:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: ended.set())
        if copy_fails is not None:
            raise copy_fails
        return Result("c", "m", "2", Status.OK, X)

    request: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    compare = shadows.begin(TriedRequest("m", "1", X, request, 0.0, copy=run))
    assert compare is not None
    compare.set_result(Result("r", "m", "1", Status.OK, X))
    await asyncio.wait_for(ended.wait(), GENEROUS)


async def test_copies_that_are_compared_are_counted() -> None:
    rollouts = Rollouts()
    shadows = rollouts.shadows()
    await shadowed(shadows)
    assert rollouts.alike == [True]
    assert (shadows.compared, shadows.dropped, shadows.failed) == (1, 0, 0)


@pytest.mark.parametrize("when", ["while it is asked", "while it is compared"])
async def test_copies_that_a_fault_ends_are_counted_and_told_of_once(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault = ValueError("a fault")
    asked = when == "while it is asked"
    shadows = Rollouts(None if asked else fault).shadows()
    for _ in range(3):
        await shadowed(shadows, fault if asked else None)
    assert (shadows.compared, shadows.dropped, shadows.failed) == (0, 0, 3)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "a fault" in caplog.text
