"""`swarm up --autoscale`: processes follow the nodes that stages want, within their number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.meshes import mesh_of, split_digits
from support.waiting import eventually

from nodes.up.autoscale import Autoscale, Move, moves, wanted_of
from nodes.up.mesh import push
from shards.zoo import digits_heldout

NUMBERS = st.dictionaries(st.integers(1, 5), st.integers(0, 9))


@given(NUMBERS, st.integers(1, 3), NUMBERS, st.integers(0, 12))
def test_no_stage_has_fewer_than_its_own_and_all_together_no_more_than_allowed(
    wanted: dict[int, int], base: int, extra: dict[int, int], most: int
) -> None:
    extra = {stage: min(number, most // 5) for stage, number in extra.items()}
    for _ in range(60):
        found = moves({s: (n, "") for s, n in wanted.items()}, base, extra, most)
        assert len({move.stage for move in found}) == len(found)
        for move in found:
            extra[move.stage] = extra.get(move.stage, 0) + move.by
        assert min(extra.values(), default=0) >= 0
        assert sum(extra.values()) <= most
        if not found:
            break
    else:
        pytest.fail("it comes to no rest")
    lacks = [s for s, n in wanted.items() if n > base + extra.get(s, 0)]
    assert not lacks or sum(extra.values()) == most


def test_the_most_that_any_node_tells_counts_and_other_versions_do_not() -> None:
    def told(version: str, stage: int, replicas: int) -> dict[str, Any]:
        row = {"model": "m", "version": version, "stage": stage, "nodes": 1, "busy": 0.9}
        return {"wanted": [row | {"replicas": replicas}]}

    statuses = [told("1", 1, 1), told("1", 1, 2), told("2", 1, 9), {}]
    assert wanted_of(statuses, "1") == {1: (2, "each of 1 computes 90% of the time")}
    assert moves(wanted_of(statuses, "1"), 1, {}, 3) == [
        Move(1, 1, "each of 1 computes 90% of the time")
    ]


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark
async def test_a_stage_under_load_gets_a_node_and_no_request_is_lost_when_it_goes() -> None:
    """The load is told by statuses that are made up; the processes and requests are real."""
    async with mesh_of() as local:
        await push(local, split_digits().manifest.to_json(), split_digits().files)
        for stage in (1, 2, 3):
            local.start(f"shard-{stage}", "digits")
        await local.ready()
        said: list[str] = []
        scale = Autoscale(local, "digits", "1", 1, 2, said.append)
        images, _ = digits_heldout()
        done: list[int] = []

        async def ask() -> None:
            for number in range(100_000):
                image = {"image": images[number % 50 : number % 50 + 1]}
                await local.mesh.infer("digits", image, budget=10.0)
                done.append(number)

        def tell(replicas: int) -> None:
            for node in local.supervisor.nodes:
                status = local.status_of(node)
                if status is not None and node.role == "shard-2":
                    row = {"model": "digits", "version": "1", "stage": 2, "nodes": 1, "busy": 0.9}
                    status["wanted"] = [row | {"replicas": replicas}]

        async def keep(replicas: int) -> None:
            while True:
                tell(replicas)
                await asyncio.sleep(0.02)

        def twos() -> int:
            return sum(n.role == "shard-2" and n.alive for n in local.supervisor.nodes)

        async with asyncio.TaskGroup() as group:
            work = [group.create_task(scale.run()), group.create_task(ask())]
            high = group.create_task(keep(2))
            await eventually(lambda: twos() == 2, "a node more")
            await local.ready()
            high.cancel()
            low = group.create_task(keep(1))
            await eventually(lambda: twos() == 1, "a node less")
            before = len(done)
            await eventually(lambda: len(done) > before + 20, "requests go on")
            for task in (*work, low):
                task.cancel()
        assert [line.split(":")[1] for line in said][:2] == [" a node more (2)", " a node less (1)"]


def test_a_wish_that_falls_while_a_process_starts_does_not_end_it() -> None:
    wanted = {1: (1, "each of 1 computes 60% of the time")}
    assert moves(wanted, 1, {1: 1}, 2, starting={1}) == []
    assert [move.by for move in moves(wanted, 1, {1: 1}, 2)] == [-1]
