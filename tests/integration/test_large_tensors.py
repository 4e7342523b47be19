"""Cuts of megabytes pass, or an error names at once the setting that they need."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.commands import Commands
from support.meshes import READY, mesh_of, segments
from support.ports import free_port
from support.waiting import eventually
from zoo.builders import chain, chain_cuts, chain_expected

import swarm
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, push
from shards.split.split import SplitResult, split
from swarm.errors import DeadlineExceeded
from swarm.samehost.memory import unavailable
from swarm.samehost.memory.ring import CAPACITY, MAX_AGE

pytestmark = [pytest.mark.integration, pytest.mark.processes]

MB = 1 << 20


def split_chain(feature_bytes: int) -> SplitResult:
    return split(
        chain(2, feature_bytes), name="chain", cuts=chain_cuts(2), bandwidth=1e6, profile=False
    )


async def ask(local: LocalMesh, size: int = MB, requests: int = 5) -> None:
    """At once, of so many bytes each; answered bit by bit, by two nodes."""
    random = np.random.default_rng(4)
    feeds = [random.random((1, size // 4), np.float32) for _ in range(requests)]
    answers = await asyncio.gather(
        *(local.mesh.infer("chain", {"features": feed}, 30.0) for feed in feeds)
    )
    for feed, answer in zip(feeds, answers, strict=True):
        assert np.array_equal(answer.outputs["result"], chain_expected(feed, 2))
        assert [hop.stage for hop in answer.hops] == [1, 2]


async def test_large_cuts_pass_bit_by_bit_and_late_requests_keep_no_shared_memory() -> None:
    async with mesh_of(split_chain(8 * MB), "shard-1", "shard-2") as local:
        await ask(local, 8 * MB, 3)
        if unavailable() is None:
            await late_requests_keep_nothing(local)


async def late_requests_keep_nothing(local: LocalMesh) -> None:
    """More is lent than there is room for, sooner than memory that nobody gives back is freed."""

    async def is_lent() -> bool:
        await ask(local, 8 * MB, 1)
        return local.mesh.lender.lent > 0

    await eventually(is_lent, "the client learns who is on this host")
    feed = np.zeros((1, 2 * MB), np.float32)
    before, late = local.mesh.lender.lent, 0
    async with asyncio.timeout(MAX_AGE - 10.0):
        while local.mesh.lender.lent - before < 2 * CAPACITY / feed.nbytes:
            try:
                await local.mesh.infer("chain", {"features": feed}, 0.0005)
            except DeadlineExceeded:  # some may be answered in so short a time
                late += 1
    assert late > 0


async def test_a_mesh_without_shared_memory_keeps_large_cuts_on_the_wire() -> None:
    async with mesh_of(split_chain(MB), "shard-1", "shard-2", shm=False) as local:
        await ask(local)
        assert segments(local.name) == []
        assert local.mesh.lender.lent == 0
        assert (local.mesh.socket.sent, local.mesh.socket.received) == (0, 0)
        statuses = local.statuses.values()
        assert {(status["host_id"], status["inbox"]) for status in statuses} == {("", "")}
        counters = [stage["counters"] for status in statuses for stage in status["stages"]]
        assert {counts["taken"] for counts in counters} == {0}


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_one_node_without_shared_memory_is_served_by_the_wire() -> None:
    """Its neighbour uses shared memory, but not with it. On a server with the setting that a node
    names whose cut does not fit."""
    async with mesh_of(max_payload=2 * MB + 16 * 1024) as local:
        result = split_chain(2 * MB)
        await push(local, result.manifest.to_json(), result.files)
        nodes = [local.start("shard-1", "chain"), local.start("shard-2", "chain", "--no-shm")]
        await local.ready(READY)
        await ask(local, 2 * MB)
        statuses = [local.status_of(node) for node in nodes]
        assert [status["host_id"] != "" for status in statuses if status] == [True, False]


async def test_a_node_whose_cut_does_not_fit_names_max_payload_and_what_to_set(
    run: Commands,
) -> None:
    async with EmbeddedServer(max_payload=1 << 20) as server:
        result = split_chain(2 << 20)
        async with swarm.connect(server.url) as mesh:
            await mesh.registry.push(result.manifest.to_json(), result.files)
        nodes = [
            run.start(
                *("nodes.cli.node", "--role", role, "--model", "chain", "--nats", server.url),
                "--allow-unsigned",
            )
            for role in ("shard-1", "fallback")
        ]
        for node in nodes:
            assert await asyncio.to_thread(node.wait, READY) == 1
            last = node.stderr.strip().splitlines()[-1]
            assert last.startswith("swarm-node: ")
            assert "max_payload" in last
            assert str(1 << 20) in last
            setting = int(last.split("`max_payload: ")[1].split("`")[0])
            assert setting > 2 << 20
            assert setting <= (2 << 20) + 16 * 1024, "which is enough"
            assert "Traceback" not in node.stderr


async def test_a_requester_whose_input_does_not_fit_is_told_so_and_stays_connected() -> None:
    async with EmbeddedServer(port=free_port(), max_payload=1 << 20) as server:
        result = split_chain(2 << 20)
        async with swarm.connect(server.url) as mesh:
            await mesh.registry.push(result.manifest.to_json(), result.files)
            features = np.ones((1, (2 << 20) // 4), np.float32)
            with pytest.raises(swarm.InvalidArgument, match="max_payload"):
                await mesh.infer("chain", {"features": features}, 30.0)
            assert mesh.link.connected
            assert mesh.link.reconnects == 0
            assert await mesh.registry.serving("chain") == "1"
