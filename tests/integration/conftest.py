"""One mesh of real processes for all tests of a worker; each leaves it as it found it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from support.commands import Commands, commands
from support.meshes import add_model, as_found, awake, mesh_of, split_digits

from nodes.up.mesh import LocalMesh


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_mesh() -> AsyncIterator[LocalMesh]:
    """digits@1 in three shards, a fallback node, and a gateway."""
    async with mesh_of(name="default") as local:
        local.start("gateway", "")
        await add_model(local, split_digits(), "shard-1", "shard-2", "shard-3", "fallback")
        yield local


@pytest_asyncio.fixture(loop_scope="session")
async def digits_mesh(shared_mesh: LocalMesh) -> AsyncIterator[LocalMesh]:
    """The shared mesh, connected."""
    await awake(shared_mesh)
    async with as_found(shared_mesh):
        yield shared_mesh


@pytest_asyncio.fixture(loop_scope="session")
async def nats_client(digits_mesh: LocalMesh) -> AsyncIterator[Client]:
    """Any NATS client, of no kinship with ours."""
    client = await nats.connect(digits_mesh.url)
    yield client
    await client.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Commands]:
    """Commands as processes of their own; none outlives the test."""
    with commands(tmp_path / "commands") as made:
        yield made
