"""Inputs of live traffic, to calibrate with: by consent alone, and stored nowhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import swarm
from nodes.records.commands.live_samples import live_samples
from nodes.up.embedded_server import EmbeddedServer
from shards.cameras import Task
from shards.cameras.wish import Wish
from shards.quantize.quantize import quantize
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import InvalidArgument, NotFound, PermissionDenied
from swarm.link import jetstream
from swarm.records.subjects import RecordSubjects
from swarm.transport.lane import LaneOptions, lane_streams, make_lanes
from swarm.wire.messages import Features

sys.path.append(str(Path(__file__).parents[2] / "shards"))
sys.path.append(str(Path(__file__).parents[2] / "shards" / "cameras"))
from detector_graphs import ssd

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
    await put(mesh, "digits", f"r{number}", {"image": IMAGES[2 * number : 2 * number + 2]})


async def put(mesh: swarm.Mesh, model: str, request: str, inputs: dict[str, np.ndarray]) -> None:
    features = Features(request, model, "1", 1, "_INBOX.x", 1_000_000, inputs)
    headers = f"NATS/1.0\r\nNats-Msg-Id: {request}/1/1\r\n\r\n".encode()
    subject = mesh.subjects.features(model, "1", 1, "any")
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
    assert not await jetstream.stream_exists(
        mesh.link, RecordSubjects.of(mesh.subjects).record_stream("digits")
    )
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


async def test_samples_of_a_graph_with_its_task_inside_calibrate_the_file_it_was_made_of(
    mesh: swarm.Mesh, tmp_path: Path
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(ssd((64, 48), 300, 5))
    wish = Wish("detect", decode="ssd", colours="bgr", normalise="-1..1")
    result = split(file, name="net", version="1", stages=1, profile=False, addition=wish)
    await mesh.registry.push(result.manifest.to_json(), result.files)
    await make_lanes(mesh.link, mesh.subjects, "net", "1", 1, LaneOptions(storage="memory"))
    await mesh.registry.allow_samples("net", True)
    task = Task.of(result.manifest.parts.get("task"))
    assert task.baked
    picture = np.random.default_rng(1).integers(0, 255, (90, 120, 3), np.uint8)
    inputs = task.prepare(picture)
    assert [array.dtype for array in inputs.values()] == [np.uint8]
    taking = asyncio.create_task(live_samples(mesh, "net", 2, 30.0))
    async with asyncio.timeout(30):
        number = 0
        while not taking.done():
            await put(mesh, "net", f"r{number}", inputs)
            number += 1
            await asyncio.wait([taking], timeout=0.05)
    arrays = await taking
    outside = replace(task, baked=False).prepare(picture)
    assert np.array_equal(arrays["input"], np.concatenate([outside["input"]] * 2))
    np.savez(tmp_path / "samples.npz", **arrays)  # type: ignore[arg-type]
    made = quantize(file, calibrate=tmp_path / "samples.npz")
    assert made.report.samples == 2
