"""Cuts of megabytes pass, or an error names at once the setting that they need."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import numpy as np
import pytest
from meshes import Commands, add_model, free_port

import swarm
from nodes.local.mesh import LocalMesh, local_mesh, push
from shards.split.split import SplitResult, split
from shards.zoo.builders import chain, chain_cuts, chain_expected
from swarm.errors import DeadlineExceeded
from swarm.services.embedded import EmbeddedServer
from swarm.shm import unavailable
from swarm.shm.claim import mesh_of
from swarm.shm.ring import CAPACITY, MAX_AGE

pytestmark = [pytest.mark.integration, pytest.mark.processes]

SIZE = 8 << 20  # bytes


def split_chain(feature_bytes: int) -> SplitResult:
    return split(
        chain(3, feature_bytes), name="chain", cuts=chain_cuts(3), bandwidth=1e6, profile=False
    )


async def test_a_cut_of_8_megabytes_passes_bit_by_bit() -> None:
    async with local_mesh() as local:
        await add_model(local, split_chain(SIZE), "shard-1", "shard-2", "shard-3")
        random = np.random.default_rng(3)
        feeds = [random.random((1, SIZE // 4), np.float32) for _ in range(3)]
        answers = await asyncio.gather(
            *(local.mesh.infer("chain", {"features": feed}, 20.0) for feed in feeds)
        )
        for feed, answer in zip(feeds, answers, strict=True):
            assert np.array_equal(answer.outputs["result"], chain_expected(feed, 3))
            assert [hop.stage for hop in answer.hops] == [1, 2, 3]


def segments(mesh: str) -> list[str]:
    """Shared memory of a mesh on this host."""
    folder = Path("/dev/shm")
    return [p.name for p in folder.iterdir() if mesh_of(p.name) == mesh] if folder.is_dir() else []


async def ask(local: LocalMesh, requests: int = 5) -> None:
    random = np.random.default_rng(4)
    for _ in range(requests):
        feed = random.random((1, (1 << 20) // 4), np.float32)
        answer = await local.mesh.infer("chain", {"features": feed}, 20.0)
        assert np.array_equal(answer.outputs["result"], chain_expected(feed, 3))


async def test_a_mesh_without_shared_memory_keeps_large_cuts_on_the_wire() -> None:
    name = f"wire-{secrets.token_hex(4)}"
    async with local_mesh(name=name, shm=False) as local:
        await add_model(local, split_chain(1 << 20), "shard-1", "shard-2", "shard-3")
        await ask(local)
        assert segments(name) == []
        assert local.mesh.lender.lent == 0
        assert {status["host_id"] for status in local.statuses.values()} == {""}


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_one_node_without_shared_memory_is_served_by_the_wire() -> None:
    """Its neighbours use shared memory, but not with it."""
    name = f"wire-{secrets.token_hex(4)}"
    async with local_mesh(name=name) as local:
        result = split_chain(1 << 20)
        await push(local, result.manifest.to_json(), result.files)
        nodes = [local.start("shard-1", "chain"), local.start("shard-2", "chain", "--no-shm")]
        nodes.append(local.start("shard-3", "chain"))
        await local.ready()
        await ask(local)
        statuses = [local.status_of(node) for node in nodes]
        assert [status["host_id"] != "" for status in statuses if status] == [True, False, True]


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_requests_that_came_too_late_keep_no_shared_memory() -> None:
    """More is lent than there is room for, sooner than memory that nobody gives back is freed."""
    async with local_mesh() as local:
        await add_model(local, split_chain(1 << 20), "shard-1", "shard-2", "shard-3")
        async with asyncio.timeout(10):
            while not local.mesh.lender.lent:  # the client has to learn who is on this host
                await ask(local, 1)
        feed = np.zeros((1, (1 << 20) // 4), np.float32)
        before, late = local.mesh.lender.lent, 0
        async with asyncio.timeout(MAX_AGE - 10.0):
            while local.mesh.lender.lent - before < 2 * CAPACITY / feed.nbytes:
                try:
                    await local.mesh.infer("chain", {"features": feed}, 0.0005)
                except DeadlineExceeded:  # some may be answered in so short a time
                    late += 1
        assert late > CAPACITY / feed.nbytes


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
            assert await asyncio.to_thread(node.wait, 30.0) == 1
            last = node.stderr.strip().splitlines()[-1]
            assert last.startswith("swarm-node: ")
            assert "max_payload" in last
            assert str(1 << 20) in last
            setting = int(last.split("`max_payload: ")[1].split("`")[0])
            assert setting > 2 << 20, "what it says to set is enough"
            assert "Traceback" not in node.stderr


async def test_the_setting_that_a_node_names_is_enough() -> None:
    """A cut of 2 MiB, on a server with the setting that the error names."""
    result = split_chain(2 << 20)
    async with local_mesh(max_payload=(2 << 20) + 64 * 1024) as local:
        await add_model(local, result, "shard-1", "shard-2", "shard-3")
        feed = np.ones((1, (2 << 20) // 4), np.float32)
        answer = await local.mesh.infer("chain", {"features": feed}, 10.0)
        assert np.array_equal(answer.outputs["result"], chain_expected(feed, 3))


async def test_a_requester_whose_input_does_not_fit_is_told_so_and_stays_connected() -> None:
    async with EmbeddedServer(port=free_port(), max_payload=1 << 20) as server:
        result = split_chain(2 << 20)
        async with swarm.connect(server.url) as mesh:
            await mesh.registry.push(result.manifest.to_json(), result.files)
            features = np.ones((1, (2 << 20) // 4), np.float32)
            with pytest.raises(swarm.ResourceExhausted, match="max_payload"):
                await mesh.infer("chain", {"features": features}, 5.0)
            assert mesh.link.connected
            assert mesh.link.reconnects == 0
            assert await mesh.registry.serving("chain") == "1"
