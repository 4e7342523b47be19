"""The supervisor: how soon a dead node starts again, in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import GENEROUS

from nodes.up import supervisor as module
from nodes.up.restarts import AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, STABLE_AFTER
from nodes.up.supervisor import POLL_EVERY, NodeProcess, Supervisor


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeNode(NodeProcess):
    """Ends `lifetime` seconds after each start, with code 1."""

    lifetime: float
    becomes_ready: bool
    starts: list[float]

    @property
    def alive(self) -> bool:
        return bool(self.starts) and now() < self.starts[-1] + self.lifetime

    def start(self) -> None:
        # The kernel tells nothing of such a process.
        self.process = SimpleNamespace(returncode=1, pid=-1)  # type: ignore[assignment]
        self.started = now()
        self.was_ready = self.becomes_ready
        self.starts.append(self.started)


def node(lifetime: float, becomes_ready: bool = False) -> FakeNode:
    made = FakeNode("shard-1", [], clock=now)
    made.becomes_ready = becomes_ready
    made.lifetime, made.starts = lifetime, []
    return made


async def watch(supervisor: Supervisor, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await supervisor.run()


def pauses(starts: list[float], lifetime: float) -> list[float]:
    return [later - earlier - lifetime for earlier, later in pairwise(starts)]


@pytest.mark.simulated
async def test_a_node_that_keeps_dying_starts_again_ever_later_up_to_a_limit() -> None:
    deaths: list[Any] = []
    supervisor = Supervisor(on_exit=lambda node, code: deaths.append(code), clock=now)
    dying = supervisor.add(node(0.0))
    await watch(supervisor, 120.0)
    waited = pauses(dying.starts, 0.0)  # type: ignore[attr-defined]
    expected = [min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) for attempt in range(len(waited))]
    assert len(waited) > 8
    assert waited == pytest.approx(expected, abs=3 * POLL_EVERY)
    assert dying.restarts == len(waited)
    assert set(deaths) == {1}
    assert len(deaths) - dying.restarts in (0, 1), "each death is told once"


@pytest.mark.simulated
async def test_a_node_that_had_been_ready_starts_in_the_same_look_that_finds_it_dead() -> None:
    lifetime = 3.05
    supervisor = Supervisor(clock=now)
    serving = node(lifetime, becomes_ready=True)
    supervisor.add(serving)
    await watch(supervisor, (AT_ONCE + 0.5) * (lifetime + POLL_EVERY))
    waited = pauses(serving.starts, lifetime)
    assert len(waited) == AT_ONCE
    assert max(waited) < POLL_EVERY


@pytest.mark.simulated
async def test_a_node_that_cannot_be_started_for_a_while_is_tried_again_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor(clock=now)
    refused, other = supervisor.add(node(1.0, True)), supervisor.add(node(1.0, True))

    def start() -> None:
        raise OSError("no memory")

    monkeypatch.setattr(refused, "start", start)
    await watch(supervisor, 3 * LONGEST_PAUSE)
    assert len(refused.starts) == 1  # type: ignore[attr-defined]
    assert len(other.starts) > 5  # type: ignore[attr-defined]
    monkeypatch.undo()
    await watch(supervisor, LONGEST_PAUSE + 1.0)
    assert len(refused.starts) > 1  # type: ignore[attr-defined]


@pytest.mark.simulated
async def test_a_node_that_lives_is_left_alone_and_one_not_wanted_stays_dead() -> None:
    supervisor = Supervisor(clock=now)
    living, dismissed = node(1e9), node(1.0)
    supervisor.add(living)
    supervisor.add(dismissed)
    dismissed.wanted = False
    await watch(supervisor, 30.0)
    assert len(living.starts) == len(dismissed.starts) == 1


@pytest.mark.simulated
async def test_one_nodes_backoff_does_not_hold_up_another() -> None:
    supervisor = Supervisor(clock=now)
    dying, fine = node(0.0), node(STABLE_AFTER + 1.0)
    supervisor.add(dying)
    supervisor.add(fine)
    await watch(supervisor, 60.0)
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
    process.wait(GENEROUS)


async def test_a_death_is_noticed_at_once_and_a_node_that_lives_is_not_asked_after(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """By the kernel's word: a supervisor's own looks are a second apart."""
    noticing = asyncio.create_task(module.one_ends([sleeper.pid], 3600.0))
    await asyncio.sleep(0)
    assert not noticing.done()
    sleeper.kill()
    await asyncio.wait_for(noticing, GENEROUS)
    assert sleeper.poll() == -signal.SIGKILL


@pytest.mark.parametrize("failure", [AttributeError, ProcessLookupError])
async def test_where_the_kernel_does_not_tell_it_is_asked_often(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    def refuse(pid: int) -> int:
        raise failure

    monkeypatch.setattr(os, "pidfd_open", refuse)
    await asyncio.wait_for(module.one_ends([os.getpid()], 3600.0), GENEROUS)
