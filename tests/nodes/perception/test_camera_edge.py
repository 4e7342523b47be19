"""An edge with cameras: each frame that is sent is answered, with its age, and none is old."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from onnx import TensorProto, helper, numpy_helper
from support.camera import sending, write_video
from support.commands import free_port
from support.meshes import LocalMesh, add_model, mesh_of
from support.waiting import eventually

from shards.split.split import split
from swarm.link import LinkMessage

pytestmark = [pytest.mark.integration, pytest.mark.processes]
HEIGHT, WIDTH = 48, 64


def picture_model() -> bytes:
    """uint8 pixels [1, 48, 64, 3] → eight numbers."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["c0"], perm=[0, 3, 1, 2]),
    ]
    weights = []
    for at, (before, after) in enumerate([(3, 8), (8, 8), (8, 8)]):
        kernel = rng.standard_normal((after, before, 3, 3)).astype(np.float32) / 10
        weights.append(numpy_helper.from_array(kernel, f"w{at}"))
        nodes.append(helper.make_node("Conv", [f"c{at}", f"w{at}"], [f"r{at}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"r{at}"], [f"c{at + 1}"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["c3"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["numbers"]))
    shape = [1, HEIGHT, WIDTH, 3]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, shape)
    numbers = helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "pictures", [pixels], [numbers], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pictures() -> AsyncIterator[LocalMesh]:
    """A mesh with a model of pictures in three stages, and a fallback."""
    async with mesh_of() as local:
        result = await asyncio.to_thread(split, picture_model(), name="pictures", stages=3)
        await add_model(local, result, "shard-1", "shard-2", "shard-3", "fallback")
        yield local


class Sink:
    """Lines of an edge's results, by a subject of their own."""

    def __init__(self, local: LocalMesh, name: str) -> None:
        self.lines: list[dict[str, Any]] = []
        local.mesh.link.subscribe(local.mesh.subjects.results(name), self._take)

    def _take(self, message: LinkMessage) -> None:
        self.lines.append(json.loads(bytes(message.data)))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_file_is_answered_frame_by_frame_and_the_edge_ends_with_it(
    pictures: LocalMesh, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, 30)
    sink = Sink(pictures, "file")
    edge = pictures.start(
        "edge", "pictures", "--source", f"hall={path}", "--sink", "file", "--on-full", "block"
    )
    edge.wanted = False
    await eventually(lambda: not edge.alive, "the edge ends with its file")
    assert edge.process is not None
    assert edge.process.returncode == 0
    await eventually(lambda: len(sink.lines) == 30)
    assert sorted(line["sequence"] for line in sink.lines) == list(range(30))
    assert {line["status"] for line in sink.lines} == {"OK"}
    for line in sink.lines:
        assert line["source"] == "hall"
        assert np.shape(line["outputs"]["numbers"]) == (1, 8)
        assert {"decode", "waited", "pre", "stage 1", "stage 3", "way", "post"} <= set(
            line["spent_ms"]
        )
        assert sum(line["spent_ms"].values()) == pytest.approx(line["age_ms"], rel=0.05)


@pytest.mark.asyncio(loop_scope="module")
async def test_two_cameras_share_fairly_and_the_status_tells_of_each(
    pictures: LocalMesh, tmp_path: Path
) -> None:
    urls = [f"udp://127.0.0.1:{free_port()}" for _ in range(2)]
    sink = Sink(pictures, "two")
    with sending(urls[0], "--rate", "60"), sending(urls[1], "--rate", "60"):
        edge = pictures.start(
            "edge", "pictures", "--source", urls[0], "--source", f"b={urls[1]}", "--sink", "two"
        )
        edge.wanted = False

        def both() -> bool:
            names = [line["source"] for line in sink.lines]
            return min(names.count("cam-1"), names.count("b")) >= 30

        await eventually(both, "both cameras are answered")

        def states() -> dict[str, str]:
            cameras = (pictures.status_of(edge) or {}).get("cameras", [])
            return {each["name"]: each["state"] for each in cameras}

        await eventually(lambda: states() == {"cam-1": "running", "b": "running"})
        edge.signal(15)
        await eventually(lambda: not edge.alive)
    assert edge.process is not None
    assert edge.process.returncode == 0
    assert {line["status"] for line in sink.lines} == {"OK"}
