"""The supervisor: how soon a dead node starts again, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.local import supervisor as module
from nodes.local.restarts import AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, STABLE_AFTER
from nodes.local.supervisor import POLL_EVERY, NodeProcess, Supervisor


class World:
    """Virtual time; processes that live as long as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.until = 0.0

    def monotonic(self) -> float:
        return self.now

    async def one_ends(self, pids: list[int], seconds: float) -> None:
        """As on a kernel that does not tell."""
        self.now += min(seconds, POLL_EVERY)
        if self.now >= self.until:
            raise asyncio.CancelledError


class FakeNode(NodeProcess):
    """Ends `lifetime` seconds after each start, with code 1."""

    world: World
    lifetime: float
    becomes_ready: bool
    starts: list[float]

    @property
    def alive(self) -> bool:
        return bool(self.starts) and self.world.now < self.starts[-1] + self.lifetime

    def start(self) -> None:
        self.process = SimpleNamespace(returncode=1, pid=0)  # type: ignore[assignment]
        self.started = self.world.now
        self.was_ready = self.becomes_ready
        self.starts.append(self.world.now)


def node(world: World, lifetime: float, becomes_ready: bool = False) -> FakeNode:
    made = FakeNode("shard-1", [])
    made.becomes_ready = becomes_ready
    made.world, made.lifetime, made.starts = world, lifetime, []
    return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(module, "one_ends", made.one_ends)
    return made


async def watch(world: World, supervisor: Supervisor, seconds: float) -> None:
    world.until = world.now + seconds
    with contextlib.suppress(asyncio.CancelledError):
        await supervisor.run()


def pauses(starts: list[float], lifetime: float) -> list[float]:
    return [later - earlier - lifetime for earlier, later in pairwise(starts)]


async def test_a_node_that_keeps_dying_starts_again_ever_later_up_to_a_limit(
    world: World,
) -> None:
    deaths: list[Any] = []
    supervisor = Supervisor(on_exit=lambda node, code: deaths.append(code))
    dying = supervisor.add(node(world, 0.0))
    await watch(world, supervisor, 120.0)
    waited = pauses(dying.starts, 0.0)  # type: ignore[attr-defined]
    expected = [min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) for attempt in range(len(waited))]
    assert len(waited) > 8
    assert waited == pytest.approx(expected, abs=3 * POLL_EVERY)
    assert dying.restarts == len(waited)
    assert set(deaths) == {1}
    assert len(deaths) - dying.restarts in (0, 1), "each death is told once"


async def test_a_node_that_lived_long_is_not_punished_for_old_deaths(world: World) -> None:
    supervisor = Supervisor()
    steady = node(world, 0.0)
    supervisor.add(steady)
    await watch(world, supervisor, 60.0)
    assert steady.past.failures > 5
    steady.lifetime = STABLE_AFTER + 1.0
    steady.starts.clear()
    steady.start()
    await watch(world, supervisor, 40.0)
    waited = pauses(steady.starts, steady.lifetime)
    assert len(waited) == 3
    assert waited == pytest.approx([FIRST_PAUSE] * 3, abs=3 * POLL_EVERY)


async def test_a_node_that_had_been_ready_starts_in_the_same_look_that_finds_it_dead(
    world: World,
) -> None:
    lifetime = 3.05
    supervisor = Supervisor()
    serving = node(world, lifetime, becomes_ready=True)
    supervisor.add(serving)
    await watch(world, supervisor, (AT_ONCE + 0.5) * (lifetime + POLL_EVERY))
    waited = pauses(serving.starts, lifetime)
    assert len(waited) == AT_ONCE
    assert max(waited) < POLL_EVERY


async def test_a_node_that_lives_is_left_alone_and_one_not_wanted_stays_dead(
    world: World,
) -> None:
    supervisor = Supervisor()
    living, dismissed = node(world, 1e9), node(world, 1.0)
    supervisor.add(living)
    supervisor.add(dismissed)
    dismissed.wanted = False
    await watch(world, supervisor, 30.0)
    assert len(living.starts) == len(dismissed.starts) == 1


async def test_one_nodes_backoff_does_not_hold_up_another(world: World) -> None:
    supervisor = Supervisor()
    dying, fine = node(world, 0.0), node(world, STABLE_AFTER + 1.0)
    supervisor.add(dying)
    supervisor.add(fine)
    await watch(world, supervisor, 60.0)
    assert pauses(fine.starts, fine.lifetime) == pytest.approx(
        [FIRST_PAUSE] * (len(fine.starts) - 1), abs=3 * POLL_EVERY
    )
    assert len(fine.starts) == 6


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child process that does nothing."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(5.0)


async def test_a_death_is_noticed_at_once_and_a_node_that_lives_is_not_asked_after(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """By the kernel's word: a supervisor's own looks are a second apart."""
    started = time.monotonic()
    await module.one_ends([sleeper.pid], 0.3)
    assert time.monotonic() - started >= 0.29
    asyncio.get_running_loop().call_later(0.1, sleeper.kill)
    async with asyncio.timeout(10.0):
        await module.one_ends([sleeper.pid], 60.0)
    assert sleeper.poll() == -signal.SIGKILL


@pytest.mark.parametrize("failure", [AttributeError, ProcessLookupError])
async def test_where_the_kernel_does_not_tell_it_is_asked_often(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    def refuse(pid: int) -> int:
        raise failure

    monkeypatch.setattr(os, "pidfd_open", refuse)
    async with asyncio.timeout(10.0):
        await module.one_ends([os.getpid()], 60.0)
