"""The watchdog over stages that hang, compute wrongly or cannot be loaded again."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.simulated_time import SimulatedLoop
from support.waiting import GENEROUS, eventually

from nodes.life.watchdog import (
    BLOCKED_FOR_GOOD,
    EXIT_CODE,
    GUARD_EVERY,
    LoopGuard,
    NodeWatchdog,
)
from nodes.life.watchdog_rules import (
    CHECK_EVERY,
    RELOAD_EVERY,
    STALL,
    TEST_EVERY,
    TEST_WITHIN,
    Watchdog,
    WatchdogAction,
)
from nodes.stage.endless import OnLoop
from shards.errors import RunError
from swarm.errors import Unavailable


def test_a_run_within_its_bound_is_left_alone() -> None:
    dog = Watchdog()
    assert not dog.running("r1", 0.99, 0.001, now=0.0)
    assert not dog.running("r2", 4.9, 0.5, now=0.0)


def test_a_hung_run_is_returned_and_its_worker_restarted_once() -> None:
    dog = Watchdog()
    verdict = dog.running("r1", 1.01, 0.001, now=0.0)
    assert verdict.actions == (WatchdogAction.RETURN, WatchdogAction.RESTART)
    assert "r1" in verdict.reason
    assert not dog.running("r1", 1.02, 0.001, now=0.01)


def test_a_stalled_loop_returns_what_it_holds() -> None:
    dog = Watchdog()
    assert not dog.loop_late(0.8 * STALL, now=0.0)
    assert dog.loop_late(1.2 * STALL, now=0.0).actions == (WatchdogAction.RETURN,)


def test_the_third_failure_in_the_window_keeps_it_out_for_good() -> None:
    dog = Watchdog()
    assert not dog.self_test(True, now=0.0)
    assert WatchdogAction.RESTART in dog.self_test(False, now=0.0).actions
    assert WatchdogAction.RESTART in dog.self_test(False, now=10.0).actions
    assert dog.self_test(False, now=20.0).actions == (
        WatchdogAction.RETURN,
        WatchdogAction.STAY_OUT,
    )
    assert dog.out
    assert WatchdogAction.STAY_OUT in dog.self_test(False, now=500.0).actions


def test_failures_far_apart_never_keep_it_out() -> None:
    dog = Watchdog()
    for minute in range(20):
        assert WatchdogAction.RESTART in dog.self_test(False, now=minute * 61.0).actions
    assert not dog.out


class FakeWindow:
    p99 = 0.0

    def percentile(self, q: float, now: float) -> float:
        return self.p99


class FakeServer:
    """As much of a stage as the watchdog sees; notes its acts."""

    def __init__(self, stage: int = 1) -> None:
        self.stage = stage
        self.on_loop = OnLoop()
        self.running_since = 0.0
        self.queued = 0
        self.right = True
        self.knows = False
        self.obeys = True  # a run ends when it is told to
        self.tests = 0
        self.acts: list[str] = []
        self.stats = SimpleNamespace(compute=FakeWindow())

    @property
    def has_known_input(self) -> bool:
        return self.knows

    def self_test(self) -> bool:
        self.tests += 1
        return self.right

    def end_runs(self) -> None:
        self.acts.append("end")
        if self.obeys:
            self.running_since = 0.0

    def suspend(self) -> None:
        self.acts.append("suspend")

    def resume(self) -> None:
        self.running_since = 0.0
        self.acts.append("resume")

    def hang(self, seconds: float = 5.0) -> None:
        self.running_since = asyncio.get_running_loop().time() - seconds


async def _at_once(test: Callable[[], bool]) -> bool:
    """In a thread it could be late by any simulated time."""
    return test()


class Scene:
    def __init__(self, *servers: FakeServer, **more: Any) -> None:
        self.servers = list(servers)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.failing: list[Exception] = []
        self.slow = 0.0
        self._looks = 0  # of the watchdog; its thread looks too
        self._looked = asyncio.Event()
        self.watchdog = NodeWatchdog(
            self._seen,  # type: ignore[arg-type]
            self._reload,  # type: ignore[arg-type]
            self._tell,
            clock=asyncio.get_running_loop().time,
            **{"in_thread": _at_once, **more},
        )

    def _seen(self) -> list[FakeServer]:
        if threading.current_thread() is threading.main_thread():
            self._looks += 1
            self._looked.set()
        return self.servers

    async def looks(self, more: int = 2) -> None:
        """Until the watchdog has looked so many times more."""
        wanted = self._looks + more
        async with asyncio.timeout(GENEROUS):
            while self._looks < wanted:
                self._looked.clear()
                await self._looked.wait()

    async def _reload(self, server: FakeServer) -> None:
        await asyncio.sleep(self.slow)
        if self.failing:
            server.acts.append("reload failed")
            raise self.failing.pop(0)
        server.acts.append("reload")
        server.right = True

    def _tell(self, kind: str, detail: dict[str, Any]) -> None:
        self.events.append((kind, detail))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watchdog.run())
        try:
            yield
        finally:
            assert not task.done(), "the watchdog has ended"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A self-test at each check."""
    monkeypatch.setattr("nodes.life.watchdog.TEST_EVERY", 0.0)


@pytest.mark.simulated
async def test_a_run_that_hangs_is_handed_back_and_the_stage_gets_a_new_session() -> None:
    hung, well = FakeServer(1), FakeServer(2)
    scene = Scene(hung, well)
    hung.hang()
    async with scene.watched():
        await eventually(lambda: "resume" in hung.acts)
        await scene.looks()
    assert hung.acts == ["suspend", "reload", "resume"]
    assert well.acts == []
    [(kind, detail)] = scene.events
    assert (kind, detail["stage"]) == ("watchdog", 1)
    assert detail["actions"] == ["return", "restart"]
    assert "took over" in detail["detail"]


@pytest.mark.simulated
async def test_any_number_of_requests_that_never_end_cost_a_stage_nothing_else() -> None:
    """Known input is computed well beside them: the fault is theirs."""
    server = FakeServer()
    server.knows = True
    scene = Scene(server)
    async with scene.watched():
        for count in range(1, 11):
            server.hang()
            await eventually(lambda count=count: server.acts.count("end") == count)
    assert (server.acts, scene.events) == (["end"] * 10, [])


async def _hangs(test: Callable[[], bool]) -> bool:
    await asyncio.sleep(24 * 3600)
    return True


@pytest.mark.simulated
@pytest.mark.parametrize("how", ["known input hangs", "it comes out wrong", "no run ends"])
async def test_a_stage_that_hangs_itself_is_taken_out(how: str) -> None:
    server = FakeServer()
    server.knows, server.obeys = True, how != "no run ends"
    server.right = how != "it comes out wrong"
    scene = Scene(server, **({"in_thread": _hangs} if how == "known input hangs" else {}))
    async with scene.watched():
        for count in (1, 2, 3):
            server.right = how != "it comes out wrong"
            server.hang()
            await eventually(lambda count=count: len(scene.events) == count)
            await eventually(lambda: server.acts[-1] in ("resume", "suspend"))
    assert scene.events[-1][1]["actions"] == ["return", "stay-out"]


@pytest.mark.simulated
async def test_a_long_run_of_a_slow_model_is_no_hang() -> None:
    slow = FakeServer()
    slow.stats.compute.p99 = 2.0  # ten times that is allowed
    slow.hang(seconds=15.0)
    scene = Scene(slow)
    async with scene.watched():
        await scene.looks()
    assert (slow.acts, scene.events) == ([], [])


@pytest.mark.usefixtures("often")
async def test_a_stage_that_computes_wrongly_is_loaded_again() -> None:
    wrong = FakeServer()
    wrong.right = False
    scene = Scene(wrong)
    async with scene.watched():
        await eventually(lambda: "resume" in wrong.acts)
        await scene.looks()
    assert wrong.acts == ["suspend", "reload", "resume"]
    assert "self-test failed" in scene.events[0][1]["detail"]


@pytest.mark.simulated
async def test_a_self_test_that_hangs_has_failed_and_the_other_stages_are_watched_meanwhile() -> (
    None
):
    tested, hung = FakeServer(1), FakeServer(2)
    scene = Scene(tested, hung, in_thread=_hangs)
    loop = asyncio.get_running_loop()
    async with scene.watched():
        began = loop.time()
        await eventually(lambda: loop.time() - began > TEST_EVERY + 1, within=60.0)
        hung.hang()
        await eventually(lambda: hung.acts)
        assert tested.acts == [], "its test may still end"
        await eventually(lambda: "resume" in tested.acts)
        took = loop.time() - began - TEST_EVERY
        assert TEST_WITHIN <= took < TEST_WITHIN + 4 * CHECK_EVERY
    assert tested.acts == ["suspend", "reload", "resume"]
    assert "self-test failed" in scene.events[-1][1]["detail"]


@pytest.mark.usefixtures("often")
async def test_a_busy_stage_is_not_tested() -> None:
    busy = FakeServer()
    busy.queued = 3
    scene = Scene(busy)
    async with scene.watched():
        await scene.looks()
    assert busy.tests == 0


@pytest.mark.simulated
async def test_after_three_failures_a_stage_stays_out_and_an_event_says_so() -> None:
    server = FakeServer()
    scene = Scene(server)
    async with scene.watched():
        for count in (1, 2, 3):
            server.hang()
            await eventually(lambda count=count: len(scene.events) == count)
            if count < 3:
                await eventually(lambda count=count: server.acts.count("resume") == count)
        server.hang()
        await scene.looks()
    again = ["suspend", "reload", "resume"]
    assert server.acts == [*again, *again, "suspend"]
    assert scene.events[2][1]["actions"] == ["return", "stay-out"]
    assert len(scene.events) == 3


@pytest.mark.simulated
@pytest.mark.parametrize("error", [Unavailable("no server"), RunError("no memory")])
async def test_a_session_that_cannot_be_had_is_tried_for_again(error: Exception) -> None:
    """The server was away for a moment: the stage must not be lost to the mesh for ever."""
    server = FakeServer()
    scene = Scene(server)
    scene.failing = [error, error]
    server.hang()
    loop = asyncio.get_running_loop()
    async with scene.watched():
        await eventually(lambda: "reload failed" in server.acts)
        failed_at = loop.time()
        assert "resume" not in server.acts
        await eventually(lambda: "resume" in server.acts)
    took, twice = loop.time() - failed_at + 0.01, 2 * RELOAD_EVERY
    assert twice <= took < twice + 3 * CHECK_EVERY
    assert server.acts == ["suspend", "reload failed", "reload failed", "reload", "resume"]


class Guarded:
    """The loop's guard in simulated time. Its own thread looks too, which changes nothing."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self.ended: list[int] = []
        self.looks = 0
        self.guard = LoopGuard(self._look, loop.time, self.ended.append)

    def _look(self, now: float) -> None:
        self.looks += 1

    def blocked_for(self, seconds: float) -> None:
        """The loop does not turn, while the thread does."""
        for _ in range(int(seconds / GUARD_EVERY)):
            slept = self.loop.time()
            self.loop.stop_for(GUARD_EVERY)
            self.guard.tick(slept)


@pytest.mark.simulated
async def test_a_loop_that_turns_is_not_ended_however_long_a_look_waits() -> None:
    """A large model takes its time to load; the process must not be ended for it."""
    scene = Guarded()
    with scene.guard:
        for _ in range(int(3 * BLOCKED_FOR_GOOD / GUARD_EVERY)):
            slept = scene.loop.time()
            await asyncio.sleep(GUARD_EVERY)  # simulated
            scene.guard.tick(slept)
    assert scene.ended == []
    assert scene.looks >= 3 * BLOCKED_FOR_GOOD / GUARD_EVERY


@pytest.mark.simulated
async def test_a_loop_that_is_blocked_for_good_ends_the_process_and_no_earlier() -> None:
    scene = Guarded()
    with scene.guard:
        scene.blocked_for(BLOCKED_FOR_GOOD - GUARD_EVERY)
        assert scene.ended == []
        scene.blocked_for(2 * GUARD_EVERY)
    assert set(scene.ended) == {EXIT_CODE}


@pytest.mark.simulated
async def test_a_process_that_was_stopped_is_not_ended_when_it_goes_on() -> None:
    scene = Guarded()
    with scene.guard:
        slept = scene.loop.time()
        scene.loop.stop_for(10 * BLOCKED_FOR_GOOD)
        scene.guard.tick(slept)
        scene.blocked_for(BLOCKED_FOR_GOOD - GUARD_EVERY)
    assert scene.ended == []


@pytest.mark.simulated
async def test_nothing_is_kept_of_a_stage_that_is_gone() -> None:
    """A new one may come to lie at its address: it must not inherit its failures."""
    scene = Scene(FakeServer(), FakeServer(2))
    async with scene.watched():
        scene.servers[0].hang()
        await eventually(lambda: "resume" in scene.servers[0].acts)
        gone = weakref.ref(scene.servers.pop(0))
        await scene.looks()
        gc.collect()
        assert gone() is None
        scene.servers.append(FakeServer(3))
        scene.servers[-1].hang()
        await eventually(lambda: "resume" in scene.servers[-1].acts)
