"""Nodes of role `auto` share a model by themselves; a newcomer takes the place of a dead one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from support.auto_meshes import alive, is_settled, leaves, newest, start_auto, until_settled
from support.meshes import close, digits, mesh_of, split_digits

from nodes.up.mesh import LocalMesh, push
from swarm.auto.plan_store import PlanStore

pytest.importorskip("nodes.records", reason="the feature `records` is not there")
from swarm.records.record import parse
from swarm.records.stream import extent_of, read_stream

STAGES = 4
MEMORY = 20  # megabytes: two stages of the digits model
BUDGET = 10.0  # seconds


async def ask(local: LocalMesh, count: int) -> list[list[tuple[int, str]]]:
    """The hops of so many requests, whose answers are all right."""
    images, expected = digits()
    hops = []
    for n in range(count):
        result = await local.mesh.infer("digits", {"image": images[n : n + 1]}, BUDGET)
        assert close(result.outputs["logits"], expected[n : n + 1])
        hops.append([(hop.stage, hop.node) for hop in result.hops])
    return hops


async def acts(local: LocalMesh) -> AsyncIterator[dict[str, Any]]:
    """What nodes decided, as the audit has it."""
    extent = await extent_of(local.mesh.link, local.mesh.subjects.stream_of("audit"))
    assert extent is not None
    async for stored in read_stream(
        local.mesh.link, local.mesh.subjects.stream_of("audit"), extent
    ):
        if (record := parse(stored.data))["kind"] == "act":
            yield record


@pytest.mark.benchmark
async def test_nodes_share_a_model_and_a_newcomer_takes_the_place_of_a_dead_one() -> None:
    model = split_digits(stages=STAGES)
    async with mesh_of() as local:
        await push(local, model.manifest.to_json(), model.files)
        for _ in range(2):
            start_auto(local, "digits", MEMORY, "--gossip", "local", "--audit")
        local.start("fallback", "digits", "--gossip", "local")
        await local.ready()
        await until_settled(local, "the start")
        plan = newest(local)
        assert plan["slots"] == [[1, 2], [3, 4]]
        assert plan["reason"] == "there is no plan yet"
        [record] = [r async for r in acts(local) if r["act"] == "planned"]
        assert (record["plan"], record["why"], record["from"]) == (1, plan["reason"], "")
        assert [part.split()[0] for part in record["to"].split(", ")] == ["1-2", "3-4"]
        assert record["agent"] in {status["node"] for status in alive(local)}
        holders = {s["node"]: s["plans"][0]["slot"] for s in alive(local)}
        for hops in await ask(local, 5):
            assert [stage for stage, _ in hops] == [1, 2, 3, 4]
            assert all(holders[node][0] <= stage <= holders[node][1] for stage, node in hops)

        # Nothing is lost while nobody has the dead node's stages but the fallback.
        [dead] = leaves(local, signal.SIGKILL, 1)
        await ask(local, 20)
        assert not is_settled(local), "there is no node for its slot"
        start_auto(local, "digits", MEMORY, "--gossip", "local")
        asking = asyncio.create_task(ask(local, 100))
        await until_settled(local, "a newcomer")
        await asking
        assert dead not in {status["pid"] for status in alive(local)}
        assert newest(local)["slots"] == [[1, 2], [3, 4]]
        assert np.ptp([len(hops) for hops in await ask(local, 3)]) == 0

        store = PlanStore(local.mesh.link, local.mesh.subjects)
        assert (await store.freeze("digits", "1", True, "a person")).frozen
        assert await local.until(lambda: newest(local).get("frozen") is True, 10.0)
