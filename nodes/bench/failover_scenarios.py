"""The faults: which mesh they need, what they do to it, and what they may cost.

`inflict` does the damage and returns when its window is over; what it leaves dead is started
again after the window, before the next trial. `prepare` comes before the quiet part.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from nodes.bench import failover_netns
from nodes.bench.failover_rig import BUDGET, Layout, Rig
from nodes.bench.failover_slow import slowed

AFTER = 1.2  # seconds of a window after the last thing that was done
SERVER_AWAY = 0.2  # seconds between the server's end and its new start
SLOW_SHARE = 0.03  # of one core: 3 ms of work, then a stall of 97 ms, and so on

Step = Callable[[Rig], Awaitable[None]]


@dataclass(frozen=True)
class Targets:
    """Bounds in ms, None where there is none; they hold at 100 requests/s.

    gap: the longest time without an answer, p99 over the trials. slowest: the slowest
    request of a window, p99 over the trials. times_usual: the slowest request of all as a
    multiple of the quiet p99. by_ack_wait: slowest ≤ ack_wait + 2 x the quiet p99.
    doubles: superfluous answers that may reach the requester. returns: what was only hung or
    cut off serves again by itself. Nothing may ever be lost,
    refused or wrong.
    """

    gap: float | None = None
    slowest: float | None = None
    times_usual: float | None = None
    by_ack_wait: bool = False
    doubles: int | None = None
    returns: bool = False


@dataclass(frozen=True)
class Scenario:
    """One fault. unavailable() says why it cannot be played here, or ''."""

    name: str
    title: str
    inflict: Step
    targets: Targets
    layout: Layout = field(default_factory=Layout)
    prepare: Step | None = None
    unavailable: Callable[[], str] = lambda: ""


KILL = Targets(gap=60, slowest=150, by_ack_wait=True)
HANG = Targets(gap=100, slowest=250, by_ack_wait=True, returns=True)
SLOW = Targets(by_ack_wait=True, returns=True)
ORDERLY = Targets(times_usual=3.0)
ANSWERED = Targets(slowest=BUDGET * 1e3)


def kill(*roles: str, count: int = 1) -> Step:
    """SIGKILL to the first `count` nodes of each role, all at the same moment."""

    async def inflict(rig: Rig) -> None:
        for node in [rig.node(role, index) for role in roles for index in range(count)]:
            node.signal(signal.SIGKILL)
        await asyncio.sleep(AFTER)

    return inflict


def stop_and_continue(role: str) -> Step:
    """SIGSTOP for 10 s (quick: 2 s), then SIGCONT: what does it still do when it wakes?"""

    async def inflict(rig: Rig) -> None:
        node = rig.node(role)
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2.0 if rig.quick else 10.0)
        finally:
            node.signal(signal.SIGCONT)
        await asyncio.sleep(AFTER)

    return inflict


async def drain_second(rig: Rig) -> None:
    await rig.drain(rig.node("shard-2"))
    await asyncio.sleep(AFTER / 2)


async def roll(rig: Rig) -> None:
    """Every node in turn: SIGTERM, start again, wait until it serves."""
    for node in rig.local.supervisor.nodes:
        await rig.drain(node)
        await rig.revive([node])
        await asyncio.sleep(AFTER / 4)


async def restart_server(rig: Rig) -> None:
    """SIGKILL, a pause, and the same port and store again."""
    await rig.server.kill()
    await asyncio.sleep(SERVER_AWAY)
    await rig.server.start()
    await asyncio.sleep(3 * AFTER)


async def cut(rig: Rig) -> None:
    """Long enough for both ends to notice, and then some."""
    assert rig.link is not None
    rig.link.cut()
    try:
        await asyncio.sleep(3.0 if rig.quick else 10.0)
    finally:
        rig.link.heal()
    await asyncio.sleep(2 * AFTER)


async def starve(rig: Rig) -> None:
    async with slowed(rig.node("shard-2").pid, SLOW_SHARE):
        await asyncio.sleep(2.0 if rig.quick else 5.0)
    await asyncio.sleep(AFTER)


def without(role: str, count: int = 1) -> Step:
    """Its primaries are dead, so that the fallback serves."""

    async def prepare(rig: Rig) -> None:
        for index in range(count):
            rig.node(role, index).signal(signal.SIGKILL)
        await asyncio.sleep(AFTER / 2)

    return prepare


async def kill_last(rig: Rig) -> None:
    """The only one left that serves stage 2; both it and the primary start again at once."""
    rig.node("fallback").signal(signal.SIGKILL)
    await asyncio.sleep(0.05)
    await rig.revive([rig.node("shard-2"), rig.node("fallback")])
    await asyncio.sleep(AFTER)


def _all() -> list[Scenario]:
    plain = [
        Scenario(f"kill-shard-{k}", f"SIGKILL of shard-{k}", kill(f"shard-{k}"), KILL)
        for k in (1, 2, 3)
    ]
    redundant = Layout(extra=("shard-2",), fallbacks=2)
    return [
        *plain,
        Scenario("kill-fallback-idle", "SIGKILL of the fallback, idle", kill("fallback"), KILL),
        Scenario(
            "kill-two", "SIGKILL of shard-2 and shard-3 at once", kill("shard-2", "shard-3"), KILL
        ),
        Scenario(
            "kill-fallback",
            "SIGKILL of the fallback that serves stage 2, nobody left",
            kill_last,
            ANSWERED,
            prepare=without("shard-2"),
        ),
        Scenario(
            "stop-shard-2",
            "SIGSTOP of shard-2, then SIGCONT",
            stop_and_continue("shard-2"),
            replace(HANG, doubles=0),
        ),
        Scenario(
            "stop-shard-3", "SIGSTOP of shard-3, then SIGCONT", stop_and_continue("shard-3"), HANG
        ),
        Scenario("slow-shard-2", "shard-2 gets 3 % of a core", starve, SLOW),
        Scenario("drain-shard-2", "SIGTERM of shard-2", drain_second, ORDERLY),
        Scenario("rolling-fallback", "rolling restart, one node a shard + fallback", roll, ORDERLY),
        Scenario(
            "kill-fallback-of-two",
            "SIGKILL of a fallback that serves stage 2 with another",
            kill("fallback"),
            KILL,
            redundant,
            prepare=without("shard-2", count=2),
        ),
        Scenario(
            "kill-replicas",
            "SIGKILL of both replicas of shard-2 at once",
            kill("shard-2", count=2),
            KILL,
            redundant,
        ),
        Scenario(
            "rolling-replicas",
            "rolling restart, two nodes a shard, no fallback",
            roll,
            ORDERLY,
            Layout(replicas=2, fallbacks=0),
        ),
        Scenario("server-memory", "server restart, lanes in memory", restart_server, ANSWERED),
        Scenario(
            "server-file",
            "server restart, lanes in files",
            restart_server,
            ANSWERED,
            Layout(storage="file"),
        ),
        Scenario(
            "cut-shard-2",
            "the link of shard-2 is cut, and healed",
            cut,
            HANG,
            Layout(remote="shard-2"),
            unavailable=failover_netns.why_not,
        ),
    ]


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _all()}


async def play(rig: Rig, scenario: Scenario) -> tuple[float, float, float, float, int]:
    """One trial: (quiet from, fault at, window's end, ready again), `time.monotonic()` s, and
    how many nodes stayed out of service though they live: those are replaced."""
    if scenario.prepare is not None:
        await scenario.prepare(rig)
    quiet = time.monotonic()
    await asyncio.sleep(rig.rng.uniform(0.5, 1.0))
    fault = time.monotonic()
    await scenario.inflict(rig)
    end = time.monotonic()
    await rig.revive(rig.local.supervisor.nodes)
    out = await rig.idle_shards() if scenario.targets.returns else []
    for node in out:
        await rig.drain(node)
    await rig.revive(out)
    again = time.monotonic()
    # A node that has just begun to serve is not yet what is usual.
    await asyncio.sleep(0.5)
    return quiet, fault, end, again, len(out)
