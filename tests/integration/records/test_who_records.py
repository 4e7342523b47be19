"""Of the answerer and the stage that both could record a request, one does."""

from __future__ import annotations

import numpy as np
import pytest
from support.meshes import READY, mesh_of
from support.waiting import eventually
from zoo.builders import chain, chain_cuts

import swarm
from nodes.up.mesh import push
from shards.split.split import split
from swarm.records.record import parse
from swarm.records.stream import extent_of, read_stream

pytestmark = [pytest.mark.integration, pytest.mark.processes]

FEATURES = 64_000  # bytes of a message: a model with large ones
REQUESTS = 30


async def test_a_gateway_with_a_second_connection_is_the_one_who_records_what_it_asks() -> None:
    large = split(
        chain(1, FEATURES), name="chain", cuts=chain_cuts(1), bandwidth=1e6, profile=False
    )
    feed = {"features": np.random.default_rng(3).random((1, FEATURES // 4), np.float32)}
    settings = ("--audit", "--two-connections", "on")
    async with mesh_of(shm=False) as local:
        await push(local, large.manifest.to_json(), large.files)
        local.start("shard-1", "chain", *settings)
        local.start("gateway", "", *settings)
        await local.ready(READY)

        async def writers() -> list[str]:
            """Who wrote the records of the requests, in their order."""
            link, stream = local.mesh.link, local.mesh.subjects.stream_of("audit")
            extent = await extent_of(link, stream)
            if extent is None:
                return []
            found = [parse(each.data) async for each in read_stream(link, stream, extent)]
            return [str(each["by"]) for each in found]

        # Until gossip has told the stage who answers, both write, and the first one counts.
        for number in range(1, 1000):
            result = await local.mesh.ask_service("chain", feed, 30.0)
            assert result.status is swarm.Status.OK, result.message

            async def is_recorded(number: int = number) -> bool:
                return len(await writers()) >= number

            await eventually(is_recorded, f"record {number}")
            if (await writers())[-REQUESTS:] == ["answerer"] * REQUESTS:
                break
        else:
            pytest.fail("the stage still writes records of what the gateway asks")
