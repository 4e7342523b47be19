"""Redundancy that fails too: both replicas of a shard, or a fallback that serves."""

from __future__ import annotations

import pytest
from faults_rig import by_fallback, played, slowest

from nodes.bench.faults.rig import Layout, Rig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LAYOUT = Layout(extra=("shard-2",), fallbacks=2)


async def test_replicas_that_die_together_are_taken_over_by_a_fallback(mesh: Rig) -> None:
    figures = await played(mesh, "kill-replicas")
    assert slowest(figures) <= 1000
    assert by_fallback(figures) > 0.9


async def test_a_fallback_that_dies_while_it_serves_is_taken_over_by_the_other(mesh: Rig) -> None:
    figures = await played(mesh, "kill-fallback-of-two")
    assert slowest(figures) <= 1000
    assert by_fallback(figures) > 0.9
