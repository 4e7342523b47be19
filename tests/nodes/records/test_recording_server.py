"""A recording outlives the server that it records at."""

from __future__ import annotations

import asyncio

import pytest
from support.waiting import eventually

import swarm
from nodes.records.recording import Recording, RecordLimits, tap_config
from nodes.up.embedded_server import EmbeddedServer
from swarm.transport.lane import LaneOptions, lane_streams, make_lanes

pytestmark = pytest.mark.integration


async def copies(mesh: swarm.Mesh) -> list[object]:
    """Where the server copies what enters the lanes of each stage."""
    found = await lane_streams(mesh.link, mesh.subjects, "digits", "1")
    return [info["config"].get("republish") for info in found]


async def test_it_goes_on_with_lanes_that_are_made_long_after_the_server_has_returned() -> None:
    async with EmbeddedServer() as server, swarm.connect(server.url) as mesh:
        lanes = mesh.link, mesh.subjects, "digits", "1", 2, LaneOptions(storage="memory")
        await make_lanes(*lanes)
        recording = Recording(mesh.link, mesh.subjects, "digits", "1", 1.0)
        await recording.start(RecordLimits())
        wanted = 2 * [tap_config(mesh.subjects, "digits", "1")]
        assert await copies(mesh) == wanted
        returned = asyncio.Event()
        mesh.link.on_up.append(returned.set)
        await server.kill()
        await server.start()
        async with asyncio.timeout(60):
            await returned.wait()
            assert await copies(mesh) == [], "the lanes were in memory"
            await make_lanes(*lanes)

            async def copied_again() -> bool:
                return await copies(mesh) == wanted

            await eventually(copied_again, "the lanes are copied again")
        await recording.stop()
        assert await copies(mesh) == [None, None]
