"""Models with large messages on a connection of their own: what one of the two losing means."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.meshes import READY, mesh_of
from support.waiting import GENEROUS, eventually
from zoo.builders import chain, chain_cuts, chain_expected

import swarm
from nodes.up.mesh import push
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model
from swarm.model import ModelInfo

pytestmark = [pytest.mark.integration, pytest.mark.processes]

FEATURES = 64_000  # bytes of a message: a model with large ones
REQUESTS = 30


async def test_a_lost_connection_of_large_messages_loses_no_request_and_stops_no_small_one() -> (
    None
):
    large = split(
        chain(2, FEATURES), name="chain", cuts=chain_cuts(2), bandwidth=1e6, profile=False
    )
    small = split(digits_model(), name="digits", stages=1, bandwidth=1e6, profile=False)
    assert ModelInfo.from_manifest(large.manifest.to_json()).is_large
    assert not ModelInfo.from_manifest(small.manifest.to_json()).is_large
    image = {"image": digits_heldout()[0][:1]}
    async with mesh_of(shm=False) as local:
        for model in (large, small):
            await push(local, model.manifest.to_json(), model.files)
        for role in ("shard-1", "shard-2"):
            local.start(role, "chain", "--two-connections", "on")
        local.start("shard-1", "digits", "--two-connections", "on")
        await local.ready(READY)
        async with swarm.connect(local.url, local.name, shm=False, two_connections=True) as mesh:
            assert len(mesh.links) == 2
            before = (await mesh.infer("digits", image)).outputs["logits"]
            random = np.random.default_rng(3)
            feeds = [random.random((1, FEATURES // 4), np.float32) for _ in range(REQUESTS)]
            async with asyncio.TaskGroup() as group:
                tasks = []
                for number, feed in enumerate(feeds):
                    tasks.append(group.create_task(mesh.infer("chain", {"features": feed}, 30.0)))
                    if number in (10, 25):
                        await mesh.bulk.ready(GENEROUS)
                        mesh.bulk.gather.transport.abort()
                    # Beside each one: a round trip, so that they are not all lost at once.
                    answer = await mesh.infer("digits", image, 30.0)
                    assert answer.attempt == 1
                    assert np.array_equal(answer.outputs["logits"], before)
            for feed, task in zip(feeds, tasks, strict=True):
                assert np.array_equal(task.result().outputs["result"], chain_expected(feed, 2))
            assert mesh.bulk.reconnects == 2
            assert mesh.link.reconnects == 0
            await eventually(lambda: mesh.requester.under_way == 0, "all are answered")
