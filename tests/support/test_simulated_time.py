"""Simulated time is exact, and free."""

from __future__ import annotations

import asyncio

import pytest

from support.simulated_time import SimulatedLoop, StuckError
from support.waiting import eventually


def run(coroutine: object) -> object:
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(coroutine)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_an_hour_of_waiting_takes_exactly_an_hour_of_simulated_time() -> None:
    async def waits() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    assert run(waits()) == pytest.approx(3600, abs=1e-6)


def test_timers_run_in_the_order_of_their_moments() -> None:
    async def order() -> list[float]:
        heard: list[float] = []
        loop = asyncio.get_running_loop()
        for delay in (0.3, 0.1, 0.2):
            loop.call_later(delay, heard.append, delay)
        await asyncio.sleep(1)
        return heard

    assert run(order()) == [0.1, 0.2, 0.3]


def test_a_timeout_ends_a_wait_at_its_simulated_moment() -> None:
    async def waits() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await loop.create_future()
        return loop.time() - began

    assert run(waits()) == pytest.approx(5, abs=1e-6)


def test_tasks_that_all_wait_for_each_other_fail_instead_of_hanging() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError):
        run(stuck())


def test_who_waits_for_a_thread_fails_always_and_not_on_a_busy_machine_only() -> None:
    async def waits() -> None:
        async with asyncio.timeout(3600):
            await asyncio.to_thread(int)

    with pytest.raises(StuckError, match="thread"):
        run(waits())


def test_a_process_that_stands_still_finds_its_timers_due() -> None:
    async def stands_still() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        moments: list[float] = []
        began = loop.time()
        loop.call_later(1, lambda: moments.append(loop.time() - began))
        loop.stop_for(10)
        await eventually(lambda: moments)
        return moments[0]

    assert run(stands_still()) == pytest.approx(10, abs=1e-6)


def test_a_promise_that_never_holds_fails_by_simulated_time() -> None:
    with pytest.raises(AssertionError, match="never kept"):
        run(eventually(lambda: False, "never kept"))
