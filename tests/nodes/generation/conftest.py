"""One mesh of real processes that serves a language model, for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest_asyncio
from nats.aio.client import Client
from support.meshes import all_ready, awake, mesh_of

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


@pytest_asyncio.fixture(loop_scope="session")
async def nats_client(local: LocalMesh) -> AsyncIterator[Client]:
    """Any NATS client, of no kinship with ours."""
    client = await nats.connect(local.url)
    yield client
    await client.close()
