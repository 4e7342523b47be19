"""A profile of live traffic, and the advice that follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.ended import Loop, none_turn

import swarm
from nodes.cli.bars import SIGNS, bar_lines
from nodes.watch.commands.profile import figure
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.profiling.spent import Profile, Spread, StageProfile, advise, profile_of
from swarm.flow.latency import BUCKETS_S
from swarm.tracing.anatomy import Kind, TimePart


def status(stage: int, served: int, fast: int, slow: int) -> dict[str, Any]:
    """A status document: `fast` runs in the first bucket, `slow` ones up to 10 ms."""
    counts = [0] * (len(BUCKETS_S) + 1)
    counts[0], counts[BUCKETS_S.index(0.01)] = fast, slow
    times = {"counts": counts, "sum": fast * 0.0001 + slow * 0.008}
    entry = {"stage": stage, "version": "1", "queue_s": times, "compute_s": times}
    return {
        "model": "m",
        "stages": [entry | {"counters": {"served": served, "batches": max(1, served // 2)}}],
    }


def test_live_figures_are_those_of_the_time_between_two_looks() -> None:
    before = {"a": status(1, 100, 100, 0), "b": status(2, 100, 100, 0)}
    after = {"a": status(1, 300, 100, 200), "b": status(2, 300, 300, 0), "c": {"model": "other"}}
    profile = profile_of("m", 2.0, before, after, [])
    first, second = profile.stages
    assert (first.rate, first.nodes, first.batch) == (100.0, 1, 2.0)
    assert first.live_compute is not None
    assert 5.0 < first.live_compute.p50 <= 10.0
    assert second.live_compute is not None
    assert second.live_compute.p99 <= 0.25
    assert first.busy == pytest.approx(0.8)
    assert profile.slowest is first


def test_a_node_that_began_anew_counts_from_its_beginning() -> None:
    profile = profile_of("m", 1.0, {"a": status(1, 500, 0, 500)}, {"a": status(1, 10, 10, 0)}, [])
    assert profile.stages[0].rate == 10.0


def test_a_part_that_a_probe_did_not_have_took_it_no_time() -> None:
    probes = [(0.001, [TimePart("compute", 1, "a", 0, 1000)]), (0.001, [])]
    profile = profile_of("m", 1.0, {}, {}, probes)
    assert profile.stages[0].parts["compute"].p50 == 0.5
    assert profile.latency == Spread(1.0, 1.0)


def stage(number: int, busy: float = 0.0, **parts: float) -> StageProfile:
    spreads: Mapping[Kind, Spread] = {
        name.replace("_", " "): Spread(ms, ms)  # type: ignore[misc]
        for name, ms in parts.items()
    }
    return StageProfile(number, 1, 10.0, 1.0, busy, None, None, spreads)


@pytest.mark.parametrize(
    ("stages", "first"),
    [
        ((stage(1, 0.9, compute=5, queue=1), stage(2, compute=1)), "replicas"),
        ((stage(1, compute=9), stage(2, compute=1), stage(3, compute=1)), "another cut"),
        ((stage(1, compute=5), stage(2, compute=5)), "quantize"),
        ((stage(1, compute=1, onward=9), stage(2, compute=1)), "a codec"),
        ((stage(1, compute=1, batch_wait=9), stage(2, compute=1)), "batches"),
    ],
)
def test_what_takes_most_of_the_time_is_advised_about_first(
    stages: tuple[StageProfile, ...], first: str
) -> None:
    lines = advise(Profile("m", 1.0, 1, None, stages))
    assert lines[0].startswith(first)


def test_a_balanced_idle_pipeline_gets_no_advice() -> None:
    stages = tuple(stage(number, compute=1, onward=1, lane=1) for number in (1, 2, 3))
    assert advise(Profile("m", 1.0, 1, None, stages)) == []
    assert advise(Profile("m", 1.0, 0, None, ())) == []


def test_every_part_is_seen_however_short() -> None:
    parts = [TimePart("lane", 1, "node-a", 0, 1), TimePart("compute", 1, "node-a", 1, 100_000)]
    lines = bar_lines(parts, {"node-a": "…a"})
    assert SIGNS["lane"] in lines[0]
    assert "stage 1 …a" in lines[0]
    assert "compute 100.000" in lines[1]


def test_a_figure_is_written_as_its_name_says(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")
    file = tmp_path / "profile.svg"
    figure([("stage 1", {"compute": 1.0})], "m", str(file))
    assert b"<svg" in file.read_bytes()


def dashboard(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    events = asyncio.Event(), asyncio.Event()
    source = MeshSource(client.link.options, PageState("default"), *events)

    async def run() -> None:
        await source.link.close()
        await source.run()

    return run()


LOOPS: dict[str, Loop] = {"dashboard": dashboard}


async def test_no_loop_of_a_page_turns(tmp_path: Path) -> None:
    await none_turn(LOOPS, tmp_path)
