"""One mesh of real processes that serves a language model, for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest_asyncio
from nats.aio.client import Client
from support.meshes import add_model, all_ready, awake, mesh_of
from support.talker import LARGE, SILENT, STRANGER, talker

from nodes.up.mesh import LocalMesh

from .language import ROLES, tiny


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def language_mesh() -> AsyncIterator[LocalMesh]:
    """Three shards of a random model, and a fallback node."""
    async with mesh_of(tiny(), *ROLES) as local:
        yield local


@pytest_asyncio.fixture(loop_scope="session")
async def local(language_mesh: LocalMesh) -> AsyncIterator[LocalMesh]:
    """The shared mesh, connected; behind the test all its nodes are ready again."""
    await awake(language_mesh)
    yield language_mesh
    await all_ready(language_mesh)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _pair() -> AsyncIterator[LocalMesh]:
    async with mesh_of(talker(), "shard-1", "shard-2") as local:
        await add_model(local, talker(name=LARGE, seed=1), "shard-1", "shard-2")
        await add_model(local, talker(1, STRANGER, order=-1), "shard-1")
        await add_model(local, talker(1, SILENT))
        yield local


@pytest_asyncio.fixture(loop_scope="session")
async def pair(_pair: LocalMesh) -> AsyncIterator[LocalMesh]:
    """Two models of one tokenizer, one of another one, and one that no node serves."""
    await awake(_pair)
    yield _pair
    await all_ready(_pair)


@pytest_asyncio.fixture(loop_scope="session")
async def nats_client(local: LocalMesh) -> AsyncIterator[Client]:
    """Any NATS client, of no kinship with ours."""
    client = await nats.connect(local.url)
    yield client
    await client.close()
