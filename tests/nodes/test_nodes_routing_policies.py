"""Routing by desired state with real processes: affinity, a canary, fast mode, each under kill."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.waiting import GENEROUS

import swarm
from nodes.up.mesh import LocalMesh, local_mesh
from nodes.up.supervisor import NodeProcess
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]

READY = 60.0  # seconds that processes may take to start on a busy machine


@cache
def digits(version: str) -> SplitResult:
    return split(digits_model(), name="digits", version=version, stages=2, bandwidth=1e6)


@cache
def images() -> np.ndarray:
    return digits_heldout()[0]


async def desire(local: LocalMesh, *versions: tuple[str, float], **more: Any) -> None:
    """Push the versions, and put the desired state in force."""
    for version, _share in versions:
        await local.mesh.registry.push(digits(version).manifest.to_json(), digits(version).files)
    document = {"serve": [{"version": v, "share": share} for v, share in versions]} | more
    await local.mesh.registry.desire("digits", document)


async def ask(mesh: swarm.Mesh, number: int, **options: Any) -> swarm.Result:
    at = number % 50
    return await mesh.ask("digits", {"image": images()[at : at + 1]}, 10.0, **options)


def problems(results: list[swarm.Result]) -> list[str]:
    return [f"{r.status}: {r.message}" for r in results if r.status is not swarm.Status.OK]


def node_of(result: swarm.Result, stage: int) -> str:
    return next(hop.node for hop in result.hops if hop.stage == stage)


def process_of(local: LocalMesh, node: str) -> NodeProcess:
    pid = local.statuses[node]["pid"]
    return next(process for process in local.supervisor.nodes if process.pid == pid)


def kill(process: NodeProcess) -> None:
    process.wanted = False
    process.signal(signal.SIGKILL)


def right(results: list[swarm.Result], expected: dict[int, np.ndarray]) -> bool:
    """Result n is that of image n, as the mesh answered it before the fault."""
    return all(
        np.allclose(result.outputs["logits"], expected[n % 50], rtol=1e-4, atol=1e-4)
        for n, result in enumerate(results)
    )


async def under_load(
    count: int, victim_at: int, victim: NodeProcess, one: Callable[[int], Awaitable[swarm.Result]]
) -> list[swarm.Result]:
    """The results of `count` requests, eight at a time; the victim is killed with eight under
    way."""
    room = asyncio.Semaphore(8)

    async def ask_one(number: int) -> swarm.Result:
        async with room:
            if number == victim_at:
                kill(victim)
            return await one(number)

    return list(await asyncio.gather(*(ask_one(number) for number in range(count))))


async def reference(mesh: swarm.Mesh) -> dict[int, np.ndarray]:
    results = [await ask(mesh, number) for number in range(50)]
    assert problems(results) == []
    return {number: result.outputs["logits"] for number, result in enumerate(results)}


async def test_a_session_stays_on_one_node_and_a_survivor_takes_over_its_lane() -> None:
    """Stage 2 has two nodes: stage 1 sends each session to one of them. One is killed under
    load; the other serves the requests in its lane, and nothing is lost."""
    async with local_mesh() as local:
        await desire(local, ("1", 100), policy="consistent-hash")
        for role in ("shard-1", "shard-2", "shard-2"):
            local.start(role, "digits")
        await local.ready(READY)
        mesh = local.mesh
        expected = await reference(mesh)

        async def homes() -> dict[str, str]:
            found: dict[str, set[str]] = {}
            for number in range(48):
                session = f"session-{number % 12}"
                result = await ask(mesh, number, session=session)
                assert problems([result]) == []
                found.setdefault(session, set()).add(node_of(result, 2))
            if any(len(nodes) > 1 for nodes in found.values()):
                return {}
            return {session: nodes.pop() for session, nodes in found.items()}

        # Gossip and the nodes' own lanes take a moment to be there.
        chosen: dict[str, str] = {}
        async with asyncio.timeout(GENEROUS):  # else sessions do not stay on their nodes
            while len(set(chosen.values())) < 2:
                chosen = await homes()
        victim = Counter(chosen.values()).most_common(1)[0][0]
        survivor = next(node for node in chosen.values() if node != victim)

        def in_session(number: int) -> Awaitable[swarm.Result]:
            return ask(mesh, number, session=f"session-{number % 12}")

        results = await under_load(150, 50, process_of(local, victim), in_session)
        assert problems(results) == []
        assert right(results, expected)
        assert {node_of(result, 2) for result in results[-12:]} == {survivor}


async def test_a_split_between_two_versions_is_kept_by_each_agent_and_serves_both() -> None:
    async with local_mesh() as local:
        await desire(local, ("1", 50), ("2", 50), sticky="agent")
        for role in ("shard-1", "shard-2"):
            local.start(role, "digits")
        await local.ready(READY)
        served: dict[str, set[str]] = {}
        for agent in range(24):
            async with swarm.connect(local.url, agent=f"agent-{agent}") as mesh:
                results = [await ask(mesh, number) for number in range(4)]
                assert problems(results) == []
                served[f"agent-{agent}"] = {result.version for result in results}
        assert all(len(versions) == 1 for versions in served.values())
        counts = Counter(version for versions in served.values() for version in versions)
        assert set(counts) == {"1", "2"}
        # A share of nothing: its agents move over, the others stay where they are.
        await desire(local, ("1", 100), ("2", 0), sticky="agent")
        async with swarm.connect(local.url, agent="agent-0") as mesh:
            results = [await ask(mesh, number) for number in range(10)]
        assert problems(results) == []
        assert {result.version for result in results} == {"1"}


async def test_fast_mode_answers_as_the_durable_does_and_survives_a_kill() -> None:
    """A fallback node stands by; a stage is killed under load. Nothing but the requester's own
    retries recovers the requests that the dead node had in hand."""
    async with local_mesh() as local:
        await desire(local, ("1", 100))
        for role in ("shard-1", "shard-2", "fallback"):
            local.start(role, "digits")
        await local.ready(READY)
        mesh = local.mesh
        expected = await reference(mesh)
        primaries = {n for n, s in local.statuses.items() if s["role"] in ("shard-1", "shard-2")}

        async def fast(number: int) -> swarm.Result:
            return await ask(mesh, number, delivery="fast")

        # Where primaries serve, the fallback keeps out of fast mode.
        served: set[str] = set()
        async with asyncio.timeout(GENEROUS):  # else the fallback serves beside living primaries
            while served != primaries:
                results = [await fast(number) for number in range(50)]
                assert problems(results) == []
                assert right(results, expected)
                served = {node_of(r, s) for r in results for s in (1, 2)}
        victim = next(n for n, s in local.statuses.items() if s["role"] == "shard-2")
        results = await under_load(120, 40, process_of(local, victim), fast)
        assert problems(results) == []
        assert right(results, expected)
        roles = {local.statuses[node_of(result, 2)]["role"] for result in results[-20:]}
        assert roles == {"fallback"}
