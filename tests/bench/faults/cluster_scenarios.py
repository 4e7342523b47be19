"""The faults of a cluster of three servers, with both kinds of lanes.

Nothing may be lost, refused or wrong, and no node may end; how long nothing is answered is
measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.faults.rig import Layout, Rig
from bench.faults.scenarios import Scenario, Step, Targets
from nodes.config import MOVED, REPLICATED
from swarm.errors import Unavailable

RATE = 50.0  # requests a second
BUDGET = 15.0  # seconds
AWAY, AWAY_QUICK = 12.0, 4.0  # seconds for which a server is away
AFTER = 4.0  # seconds of a window after the server's return

CLUSTER_TARGETS = Targets(slowest=BUDGET * 1e3)
Which = Callable[[Rig], Awaitable[int]]


def layout_of(lanes: str, servers: int = 3) -> Layout:
    return Layout(servers=servers, lanes=lanes, budget=BUDGET)


async def with_lanes(rig: Rig) -> int:
    """The server that leads the stream of the first stage's lanes."""
    mesh, manifest = rig.local.mesh, rig.workload.model.manifest
    stream = mesh.subjects.stream(manifest.model, manifest.version, 1, mesh.link.domain)
    return await rig.cluster.leader_of(mesh.link, stream)


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
        check_nodes(rig)

    return inflict


async def roll(rig: Rig) -> None:
    """Each server in turn leaves by lame-duck mode, and comes back."""
    for index in range(len(rig.cluster.all)):
        await rig.cluster.send_away(index)
        await rig.cluster.bring_back(index)
        await asyncio.sleep(AFTER / 2)
    await asyncio.sleep(AFTER / 2)
    check_nodes(rig)


async def split_and_heal(rig: Rig) -> None:
    """The server with the lanes and the two others hear nothing of each other for a while."""
    index = await with_lanes(rig)
    rig.cluster.proxies.cut_off(index)
    try:
        await asyncio.sleep(AWAY_QUICK if rig.quick else AWAY)
    finally:
        rig.cluster.proxies.heal()
    await asyncio.sleep(AFTER)
    await rig.cluster.takes_part(index)
    check_nodes(rig)


def check_nodes(rig: Rig) -> None:
    """Raises `Unavailable` where a node has ended: none may."""
    for node in rig.local.supervisor.nodes:
        if not node.alive:
            raise Unavailable(f"{node.role} ended:\n{rig.local.tail(node)}")


def _all_scenarios() -> list[Scenario]:
    found = []
    for lanes in (MOVED, REPLICATED):
        layout = layout_of(lanes)
        faults: tuple[tuple[str, str, Step], ...] = (
            ("lane", "SIGKILL of the server with the lanes", lose(with_lanes)),
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


CLUSTER_SCENARIOS: dict[str, Scenario] = {s.name: s for s in _all_scenarios()}
