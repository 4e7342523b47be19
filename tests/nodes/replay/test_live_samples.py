"""Inputs of live traffic, to calibrate with: by consent alone, and stored nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

import swarm
from nodes.cli.live_samples import live_samples
from nodes.up.embedded_server import EmbeddedServer
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import InvalidArgument, NotFound, PermissionDenied
from swarm.link import jetstream
from swarm.transport.lane import LaneOptions, lane_streams, make_lanes
from swarm.wire.messages import Features

pytestmark = pytest.mark.integration
IMAGES = digits_heldout()[0]


@pytest.fixture
async def mesh() -> AsyncIterator[swarm.Mesh]:
    async with EmbeddedServer() as server, swarm.connect(server.url) as mesh:
        for name, edge_layers in (("digits", None), ("edgy", 2)):
            result = split(
                digits_model(),
                name=name,
                version="1",
                stages=2,
                edge_layers=edge_layers,
                profile=False,
            )
            await mesh.registry.push(result.manifest.to_json(), result.files)
        lanes = LaneOptions(storage="memory")
        await make_lanes(mesh.link, mesh.subjects, "digits", "1", 2, lanes)
        yield mesh


async def ask(mesh: swarm.Mesh, number: int) -> None:
    """Put two images into the lane of stage 1, as a requester does."""
    images = IMAGES[2 * number : 2 * number + 2]
    features = Features(f"r{number}", "digits", "1", 1, "_INBOX.x", 1_000_000, {"image": images})
    headers = f"NATS/1.0\r\nNats-Msg-Id: r{number}/1/1\r\n\r\n".encode()
    subject = mesh.subjects.features("digits", "1", 1, "any")
    message = await mesh.link.request(subject, b"".join(features.parts()), 5.0, headers)
    jetstream.parse(message.data)


async def test_inputs_are_taken_as_they_pass_and_stored_nowhere(mesh: swarm.Mesh) -> None:
    await mesh.registry.allow_samples("digits", True)
    taking = asyncio.create_task(live_samples(mesh, "digits", 5, 30.0))
    number = 0
    async with asyncio.timeout(30):
        while not taking.done():
            await ask(mesh, number)
            number += 1
            await asyncio.wait([taking], timeout=0.05)
    found = (await taking)["image"]
    assert found.shape == (5, *IMAGES.shape[1:])
    assert all(any(np.array_equal(row, image) for image in IMAGES) for row in found)
    assert not await jetstream.stream_exists(mesh.link, mesh.subjects.record_stream("digits"))
    for info in await lane_streams(mesh.link, mesh.subjects, "digits", "1"):
        assert "republish" not in info["config"]


async def test_without_consent_the_error_names_the_command(mesh: swarm.Mesh) -> None:
    with pytest.raises(PermissionDenied, match="swarm model samples digits on"):
        await live_samples(mesh, "digits", 5, 1.0)
    await mesh.registry.allow_samples("digits", True)
    await mesh.registry.allow_samples("digits", False)
    with pytest.raises(PermissionDenied):
        await live_samples(mesh, "digits@1", 5, 1.0)


async def test_too_few_inputs_and_a_model_with_edge_layers_are_refused(mesh: swarm.Mesh) -> None:
    for name in ("digits", "edgy"):
        await mesh.registry.allow_samples(name, True)
    with pytest.raises(NotFound, match="0 of 5 samples"):
        await live_samples(mesh, "digits", 5, 0.1)
    with pytest.raises(InvalidArgument, match="edge layers"):
        await live_samples(mesh, "edgy", 5, 1.0)
