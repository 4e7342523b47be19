"""Meshes of real processes for faults of the network and of clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.faulty_mesh import Rig, start_rig


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A ready mesh of the module's `LAYOUT`."""
    async with start_rig(request.module.LAYOUT, quick=True) as made:
        yield made
