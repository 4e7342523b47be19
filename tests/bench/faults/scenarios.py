"""The faults: the mesh that each one needs, the damage that it does, and the most that it may cost.

`inflict` does the damage and returns when its window is over. Nodes that are dead then are started
again before the next trial. `prepare` runs before the quiet part.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from support import cut_link
from support.faulty_mesh import REQUEST_BUDGET, Layout, Rig
from support.starved import starved

from nodes.config import MOVED, REPLICATED

WINDOW_TAIL = 1.2  # seconds of a window after the last act of a scenario
SERVER_AWAY = 0.2  # seconds between the server's end and its new start
SERVER_HUNG = 4.0  # seconds at the most until a hung server is killed and started again
SLOW_SHARE = 0.03  # of one core: 3 ms of work, then a stall of 97 ms, and so on

Step = Callable[[Rig], Awaitable[None]]


@dataclass(frozen=True)
class Targets:
    """Bounds in ms at 100 requests/s; None: no bound. No scenario may lose, refuse or falsify a
    request.

    gap: the longest time without an answer, p99 over the trials. slowest: the slowest request of a
    window, p99 over the trials. times_usual: the slowest request of all as a multiple of the quiet
    p99. by_ack_wait: slowest ≤ ack_wait + 2 x the quiet p99. doubles: superfluous answers that may
    reach the requester. returns: a node that was only hung or cut off serves again by itself.
    """

    gap: float | None = None
    slowest: float | None = None
    times_usual: float | None = None
    by_ack_wait: bool = False
    doubles: int | None = None
    returns: bool = False


@dataclass(frozen=True)
class Scenario:
    """One fault. unavailable() says why the scenario cannot be played here, or ''."""

    name: str
    title: str
    inflict: Step
    targets: Targets
    layout: Layout = field(default_factory=Layout)
    prepare: Step | None = None
    unavailable: Callable[[], str] = lambda: ""


KILLED = Targets(gap=60, slowest=150, by_ack_wait=True)
HUNG = Targets(gap=100, slowest=250, by_ack_wait=True, returns=True)
HUNG_ONCE = replace(HUNG, doubles=0)
SLOWED = Targets(by_ack_wait=True, returns=True)
ORDERLY = Targets(times_usual=3.0)
ANSWERED = Targets(slowest=REQUEST_BUDGET * 1e3)


def kill(*roles: str, count: int = 1) -> Step:
    """SIGKILL to the first `count` nodes of each role, all at the same moment."""

    async def inflict(rig: Rig) -> None:
        for node in [rig.node(role, index) for role in roles for index in range(count)]:
            node.signal(signal.SIGKILL)
        await asyncio.sleep(WINDOW_TAIL)

    return inflict


def stop(role: str) -> Step:
    """SIGSTOP for 10 s (quick: 2 s), then SIGCONT: the node wakes with old work in hand."""

    async def inflict(rig: Rig) -> None:
        node = rig.node(role)
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2.0 if rig.quick else 10.0)
        finally:
            node.signal(signal.SIGCONT)
        await asyncio.sleep(WINDOW_TAIL)

    return inflict


async def drain_shard_2(rig: Rig) -> None:
    await rig.drain(rig.node("shard-2"))
    await asyncio.sleep(WINDOW_TAIL / 2)


async def restart_each(rig: Rig) -> None:
    """Every node in turn: SIGTERM, start again, wait until it serves."""
    for node in rig.local.supervisor.nodes:
        await rig.drain(node)
        await rig.revive([node])
        await asyncio.sleep(WINDOW_TAIL / 4)


async def restart_server(rig: Rig) -> None:
    """SIGKILL of the server, a pause, and a new start with the same port and store."""
    await rig.server.kill()
    await asyncio.sleep(SERVER_AWAY)
    await rig.server.start()
    await asyncio.sleep(3 * WINDOW_TAIL)


def signal_server(number: signal.Signals, seconds: float) -> Step:
    """A signal to the server, whose supervisor starts it again; then `seconds` of waiting."""

    async def inflict(rig: Rig) -> None:
        os.kill(rig.server.pid, number)
        await asyncio.sleep(seconds)

    return inflict


async def cut_and_heal(rig: Rig) -> None:
    """Cut the link for longer than both ends need to notice."""
    assert rig.link is not None
    rig.link.cut()
    try:
        await asyncio.sleep(3.0 if rig.quick else 10.0)
    finally:
        rig.link.heal()
    await asyncio.sleep(2 * WINDOW_TAIL)


async def starve_shard_2(rig: Rig) -> None:
    """Little CPU for shard-2 for 5 s (quick: 2 s)."""
    async with starved(rig.node("shard-2").pid, SLOW_SHARE):
        await asyncio.sleep(2.0 if rig.quick else 5.0)
    await asyncio.sleep(WINDOW_TAIL)


def without(role: str, count: int = 1) -> Step:
    """Kill the primaries of a role, so that the fallback serves."""

    async def prepare(rig: Rig) -> None:
        for index in range(count):
            rig.node(role, index).signal(signal.SIGKILL)
        await asyncio.sleep(WINDOW_TAIL / 2)

    return prepare


async def kill_last_of_stage_2(rig: Rig) -> None:
    """Kill the only node left that serves stage 2; it and the primary start again at once."""
    rig.node("fallback").signal(signal.SIGKILL)
    await asyncio.sleep(0.05)
    await rig.revive([rig.node("shard-2"), rig.node("fallback")])
    await asyncio.sleep(WINDOW_TAIL)


TWO_FALLBACKS = Layout(extra=("shard-2",), fallbacks=2)
WATCHED = Layout(watched=True)
HUNG_LONG = signal_server(signal.SIGSTOP, SERVER_HUNG + 2 * WINDOW_TAIL)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("kill-shard-1", "SIGKILL of shard-1", kill("shard-1"), KILLED),
        Scenario("kill-shard-2", "SIGKILL of shard-2", kill("shard-2"), KILLED),
        Scenario("kill-shard-3", "SIGKILL of shard-3", kill("shard-3"), KILLED),
        Scenario("kill-fallback-idle", "SIGKILL of the idle fallback", kill("fallback"), KILLED),
        Scenario("kill-two", "SIGKILL of shard-2 and shard-3", kill("shard-2", "shard-3"), KILLED),
        Scenario(
            "kill-fallback",
            "SIGKILL of the fallback that serves stage 2, nobody left",
            kill_last_of_stage_2,
            ANSWERED,
            prepare=without("shard-2"),
        ),
        Scenario("stop-shard-2", "SIGSTOP of shard-2, then SIGCONT", stop("shard-2"), HUNG_ONCE),
        Scenario("stop-shard-3", "SIGSTOP of shard-3, then SIGCONT", stop("shard-3"), HUNG),
        Scenario("slow-shard-2", "shard-2 gets 3 % of a core", starve_shard_2, SLOWED),
        Scenario("drain-shard-2", "SIGTERM of shard-2", drain_shard_2, ORDERLY),
        Scenario("rolling-fallback", "rolling restart with a fallback", restart_each, ORDERLY),
        Scenario(
            "kill-fallback-of-two",
            "SIGKILL of a fallback that serves stage 2 with another",
            kill("fallback"),
            KILLED,
            TWO_FALLBACKS,
            prepare=without("shard-2", count=2),
        ),
        Scenario(
            "kill-replicas",
            "SIGKILL of both replicas of shard-2 at once",
            kill("shard-2", count=2),
            KILLED,
            TWO_FALLBACKS,
        ),
        Scenario(
            "rolling-replicas",
            "rolling restart, two nodes a shard, no fallback",
            restart_each,
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
            "up-server-killed",
            "SIGKILL of the server under `swarm up`",
            signal_server(signal.SIGKILL, WINDOW_TAIL),
            ANSWERED,
            WATCHED,
        ),
        Scenario(
            "up-server-hung", "SIGSTOP of the server under `swarm up`", HUNG_LONG, ANSWERED, WATCHED
        ),
        Scenario(
            "cut-shard-2",
            "the link of shard-2 is cut, and healed",
            cut_and_heal,
            HUNG,
            Layout(remote="shard-2"),
            unavailable=cut_link.why_not,
        ),
    )
}


# --- a cluster of three servers, with both kinds of lanes: nothing may be lost or wrong ---------

CLUSTER_RATE = 50.0  # requests a second
CLUSTER_BUDGET = 15.0  # seconds
AWAY, AWAY_QUICK = 12.0, 4.0  # seconds for which a server is away
AFTER = 4.0  # seconds of a window after the server's return

CLUSTER_TARGETS = Targets(slowest=CLUSTER_BUDGET * 1e3)
Which = Callable[[Rig], Awaitable[int]]


def layout_of(lanes: str, servers: int = 3) -> Layout:
    return Layout(servers=servers, lanes=lanes, budget=CLUSTER_BUDGET)


async def with_meta(rig: Rig) -> int:
    """The server that leads the cluster."""
    return await rig.cluster.meta_leader()


async def with_keys(rig: Rig) -> int:
    """The server that leads the keys' stream."""
    mesh = rig.local.mesh
    return await rig.cluster.leader_of(mesh.link, f"KV_{mesh.subjects.config_bucket}")


def lose(which: Which) -> Step:
    """SIGKILL of a server, which is away for a while."""

    async def inflict(rig: Rig) -> None:
        index = await which(rig)
        await rig.cluster.all[index].kill()
        await asyncio.sleep(AWAY_QUICK if rig.quick else AWAY)
        await rig.cluster.bring_back(index)
        await asyncio.sleep(AFTER)
        rig.check_nodes()

    return inflict


async def roll(rig: Rig) -> None:
    """Each server in turn leaves by lame-duck mode, and comes back."""
    for index in range(len(rig.cluster.all)):
        await rig.cluster.send_away(index)
        await rig.cluster.bring_back(index)
        await asyncio.sleep(AFTER / 2)
    await asyncio.sleep(AFTER / 2)
    rig.check_nodes()


async def split_and_heal(rig: Rig) -> None:
    """The server with the lanes and the two others hear nothing of each other for a while."""
    index = await rig.server_with_lanes()
    rig.cluster.routes.cut_off(index)
    try:
        await asyncio.sleep(AWAY_QUICK if rig.quick else AWAY)
    finally:
        await rig.cluster.routes.heal()
    await asyncio.sleep(AFTER)
    await rig.cluster.takes_part(index)
    rig.check_nodes()


def _cluster_scenarios() -> list[Scenario]:
    found = []
    for lanes in (MOVED, REPLICATED):
        layout = layout_of(lanes)
        faults: tuple[tuple[str, str, Step], ...] = (
            ("lane", "SIGKILL of the server with the lanes", lose(Rig.server_with_lanes)),
            ("meta", "SIGKILL of the cluster's leader", lose(with_meta)),
            ("keys", "SIGKILL of the server that leads the keys", lose(with_keys)),
            ("rolling", "each server leaves by lame-duck mode and comes back", roll),
            ("split", "the server with the lanes is cut off from the others", split_and_heal),
        )
        found += [
            Scenario(f"{lanes}-{name}", f"lanes {lanes}: {title}", step, CLUSTER_TARGETS, layout)
            for name, title, step in faults
        ]
    return found


CLUSTER_SCENARIOS: dict[str, Scenario] = {s.name: s for s in _cluster_scenarios()}
