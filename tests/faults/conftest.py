"""One mesh for all faults of nodes, and the meshes of `swarm bench failover` for faults of the
network and of clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from bench.faults.rig import Rig, Workload, make_workload, start_rig


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = tmp_path_factory.mktemp("failover")
    return make_workload(directory)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(request: pytest.FixtureRequest, workload: Workload) -> AsyncIterator[Rig]:
    """A ready mesh of the module's `LAYOUT`."""
    async with start_rig(request.module.LAYOUT, workload, quick=True) as made:
        yield made
