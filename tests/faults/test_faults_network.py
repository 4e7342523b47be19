"""A link that falls silent: no reset, no unreachable host, on either side."""

from __future__ import annotations

import pytest
from support.cut_link import why_not
from support.faulty_mesh import Layout, Rig
from support.meshes import Load

pytestmark = [
    pytest.mark.processes,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]
LAYOUT = Layout(remote="shard-2")


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if reason := why_not():
        pytest.skip(reason)


async def test_a_node_behind_a_cut_link_is_taken_over_and_comes_back(rig: Rig) -> None:
    assert rig.link is not None
    load = Load(rig.local.mesh, rate=100, budget=40.0)
    async with load.steady():
        await load.answers(by="shard-2")
        rig.link.cut()
        try:
            await load.answers(by="fallback", stage=2)
        finally:
            rig.link.heal()
        await load.answers(by="shard-2")
