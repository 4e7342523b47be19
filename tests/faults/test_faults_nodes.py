"""Three shards and a fallback: each fault, with requests all the time."""

from __future__ import annotations

import pytest
from faults_rig import by_fallback, gap, played, slowest

from nodes.bench.faults.rig import Rig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SECOND = 1000.0  # ms
MOST_HELD = 32  # messages that a node may hold of one lane
STOPPED = 0.5  # of a window at least, a stopped node cannot serve


@pytest.mark.parametrize("role", ["shard-1", "shard-2", "shard-3"])
async def test_a_killed_shard_is_taken_over_and_no_request_is_lost(mesh: Rig, role: str) -> None:
    figures = await played(mesh, f"kill-{role}")
    assert slowest(figures) <= SECOND
    assert gap(figures) <= SECOND
    assert by_fallback(figures) > 0.9


async def test_the_death_of_an_idle_fallback_concerns_nobody(mesh: Rig) -> None:
    figures = await played(mesh, "kill-fallback-idle")
    assert slowest(figures) <= SECOND
    # It may have taken an overflow on a busy machine, never the stream.
    assert by_fallback(figures) < 0.5


async def test_two_shards_that_die_at_once_are_both_taken_over(mesh: Rig) -> None:
    figures = await played(mesh, "kill-two")
    assert slowest(figures) <= SECOND
    assert by_fallback(figures) > 0.9


async def test_requests_outlive_the_last_node_of_a_stage_until_it_is_back(mesh: Rig) -> None:
    figures = await played(mesh, "kill-fallback")
    assert slowest(figures) <= 5 * SECOND


async def test_a_stopped_shard_that_wakes_corrupts_nothing(mesh: Rig) -> None:
    figures = await played(mesh, "stop-shard-2")
    assert slowest(figures) <= SECOND
    assert figures["doubles"] == 0, "what it computed late must have been deduplicated"
    assert by_fallback(figures) > STOPPED


async def test_a_last_shard_that_wakes_repeats_only_what_it_held(mesh: Rig) -> None:
    figures = await played(mesh, "stop-shard-3")
    assert slowest(figures) <= SECOND
    # At-least-once on the wire; the requester has taken the first answer, and they agree.
    assert figures["doubles"] <= MOST_HELD


async def test_a_starved_shard_slows_its_requests_by_no_more_than_a_second(mesh: Rig) -> None:
    assert slowest(await played(mesh, "slow-shard-2")) <= SECOND


async def test_a_drained_shard_leaves_without_a_trace(mesh: Rig) -> None:
    figures = await played(mesh, "drain-shard-2")
    assert slowest(figures) <= SECOND / 2
    assert figures["retried"] == 0


async def test_a_rolling_restart_beside_a_fallback_is_not_noticed(mesh: Rig) -> None:
    figures = await played(mesh, "rolling-fallback")
    assert slowest(figures) <= SECOND
    assert figures["retried"] == 0


async def test_a_server_restart_that_forgets_the_lanes_loses_no_request(mesh: Rig) -> None:
    figures = await played(mesh, "server-memory")
    assert figures["retried"] > 0
    assert slowest(figures) <= 5 * SECOND
