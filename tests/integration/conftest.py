"""One mesh of real processes for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from meshes import Commands, add_model, awake, commands, split_digits
from nats.aio.client import Client

from nodes.local.mesh import LocalMesh, local_mesh


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_mesh() -> AsyncIterator[LocalMesh]:
    """digits@1 in three shards, a fallback node, and a gateway."""
    async with local_mesh() as local:
        local.start("gateway", "")
        await add_model(local, split_digits(), "shard-1", "shard-2", "shard-3", "fallback")
        yield local


@pytest_asyncio.fixture(loop_scope="session")
async def digits_mesh(shared_mesh: LocalMesh) -> LocalMesh:
    """The shared mesh, connected."""
    await awake(shared_mesh)
    return shared_mesh


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
