"""An edge with cameras: each frame that is sent is answered, with its age, and none is old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio
from support.camera import scene, sending, write_video
from support.camera_mesh import Sink, picture_model
from support.meshes import LocalMesh, add_model, mesh_of
from support.ports import free_port
from support.waiting import eventually

from shards.cameras.picture import SUFFIXES
from shards.split.split import split

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pictures() -> AsyncIterator[LocalMesh]:
    """A mesh with a model of pictures in three stages, and a fallback."""
    async with mesh_of() as local:
        result = await asyncio.to_thread(split, picture_model(), name="pictures", stages=3)
        await add_model(local, result, "shard-1", "shard-2", "shard-3", "fallback")
        yield local


@pytest.mark.asyncio(loop_scope="module")
async def test_a_file_is_answered_frame_by_frame_and_the_edge_ends_with_it(
    pictures: LocalMesh, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, 30)
    sink = Sink(pictures, "file")
    edge = pictures.start("edge", "pictures", "--source", f"hall={path}", "--sink", "file")
    edge.wanted = False
    await eventually(lambda: not edge.alive, "the edge ends with its file")
    assert edge.process is not None
    assert edge.process.returncode == 0
    await eventually(lambda: len(sink.lines) == 30)
    assert [line["sequence"] for line in sink.lines] == list(range(30))
    assert {line["file"] for line in sink.lines} == {"clip.mp4"}
    assert [line["time_s"] for line in sink.lines] == [round(n / 30, 3) for n in range(30)]
    assert {line["status"] for line in sink.lines} == {"OK"}
    for line in sink.lines:
        assert line["source"] == "hall"
        assert np.shape(line["outputs"]["numbers"]) == (1, 8)
        assert {"decode", "waited", "pre", "stage 1", "stage 3", "way", "post"} <= set(
            line["spent_ms"]
        )
        assert sum(line["spent_ms"].values()) == pytest.approx(line["age_ms"], rel=0.05)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_folder_of_all_forms_is_played_whole_and_summed_up(
    pictures: LocalMesh, tmp_path: Path
) -> None:
    names = [f"{n:02}{SUFFIXES[n % len(SUFFIXES)].upper()}" for n in range(48)]
    for number, name in enumerate(names):
        assert cv2.imwrite(str(tmp_path / name), scene(number, (64, 48))[..., ::-1])
    (tmp_path / "48.jpg").write_bytes(b"no picture")
    sink = Sink(pictures, "folder")
    edge = pictures.start("edge", "pictures", "--source", str(tmp_path), "--sink", "folder")
    edge.wanted = False
    await eventually(lambda: not edge.alive, "the edge ends with its folder")
    await eventually(lambda: len(sink.lines) == 48)
    assert [line["file"] for line in sink.lines] == names
    assert {line["status"] for line in sink.lines} == {"OK"}
    assert edge.process is not None
    assert edge.process.returncode == 0
    assert edge.log_path is not None
    assert "49 frames read, 48 answered, 1 spoilt, 0 failed" in edge.log_path.read_text()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["clip.mp4", "folder", "folder of noise"])
async def test_an_edge_whose_only_source_is_unusable_fails(
    pictures: LocalMesh, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name == "clip.mp4":
        path.write_bytes(b"no video")
    else:
        path.mkdir()
    if name == "folder of noise":
        (path / "1.png").write_bytes(b"no picture")
    edge = pictures.start("edge", "pictures", "--source", str(path), "--sink", "nothing")
    edge.wanted = False
    await eventually(lambda: not edge.alive)
    assert edge.process is not None
    assert edge.process.returncode == 1
    assert edge.log_path is not None
    assert "nothing was read to its end" in edge.log_path.read_text()


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
