"""One split model for all fault tests, and one mesh for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from nodes.bench.faults.rig import Layout, Rig, Workload, make_workload, start_rig


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = tmp_path_factory.mktemp("failover")
    return make_workload(directory)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mesh(request: pytest.FixtureRequest, workload: Workload) -> AsyncIterator[Rig]:
    """A ready mesh of the module's `LAYOUT`."""
    layout = getattr(request.module, "LAYOUT", Layout())
    async with start_rig(layout, workload, quick=True) as rig:
        yield rig
