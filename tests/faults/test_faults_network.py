"""A link that falls silent: no reset, no unreachable host, on either side."""

from __future__ import annotations

import pytest
from faults_rig import by_fallback, played, slowest

from nodes.bench.faults.cut_link import why_not
from nodes.bench.faults.rig import Layout, Rig

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


async def test_a_node_behind_a_cut_link_is_taken_over_and_comes_back(mesh: Rig) -> None:
    figures = await played(mesh, "cut-shard-2")
    assert slowest(figures) <= 1000
    assert 0.3 < by_fallback(figures) < 0.95, "it must serve again once the link has healed"
